"""The app: functions as tasks, queued as leased jobs and run by workers. `from conquiet import Conquiet`."""

from conquiet.app.application import Conquiet
from conquiet.app.arguments import task_payload
from conquiet.app.task import Task, TaskCall

__all__ = ["Conquiet", "Task", "TaskCall", "task_payload"]
