"""Running a job of an app: its task found, its arguments put back, its function called."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar, copy_context
from typing import Any

from conquiet.app.arguments import TASK, task_name
from conquiet.app.task import Task
from conquiet.errors import CallTimeoutError, JobRejectedError
from conquiet.jobs import Job, JobContext

__all__ = ["CONTEXT", "Tasks", "find_task", "run_call", "run_call_async"]

CONTEXT: ContextVar[JobContext] = ContextVar("conquiet_job_context")

Tasks = Mapping[str, Task[..., Any]]


def find_task(tasks: Tasks, job: Job) -> Task[..., Any]:
    """The task of a job; JobRejectedError, which fails it for good, if this app has none of that name."""
    name = task_name(job.payload)
    if name is None:
        raise JobRejectedError(
            f"this job was not enqueued by a task: its payload has no {TASK!r}. Use a queue of its own for it"
        )
    task = tasks.get(name)
    if task is None:
        raise JobRejectedError(
            f"this app has no task {name!r} (it has: {', '.join(map(repr, sorted(tasks))) or 'none'}). Deploy the "
            "code that has it, or import the module that defines it, and then retry the job"
        )
    return task


def run_call(task: Task[..., Any], job: Job, context: JobContext, limit: float | None = None) -> None:
    """On a thread or in a process of its own. A coroutine has an event loop to itself, and is cancelled at `limit`."""
    args, kwargs = task.parameters.call(job.payload)
    token = CONTEXT.set(context)
    try:
        result: Any = task.function(*args, **kwargs)
        if inspect.iscoroutine(
            result
        ):  # a plain function may give one too: a decorator around a coroutine function
            run_coroutine(lambda: _limited(result, limit))
    finally:
        CONTEXT.reset(token)


async def run_call_async(task: Task[..., Any], job: Job, context: JobContext) -> None:
    args, kwargs = task.parameters.call(job.payload)
    token = CONTEXT.set(context)
    try:
        result = task.function(*args, **kwargs)
        if inspect.isawaitable(result):
            await result
    finally:
        CONTEXT.reset(token)


def run_coroutine(make: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """To its end, in an event loop of its own: beside the one that runs here, if one does."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(make())
    with ThreadPoolExecutor(1, "conquiet inline") as thread:
        return thread.submit(copy_context().run, lambda: asyncio.run(make())).result()


async def _limited(call: Coroutine[Any, Any, Any], limit: float | None) -> None:
    try:
        async with asyncio.timeout(limit) as scope:
            await call
    except TimeoutError:
        if not scope.expired():
            raise  # its own
        raise CallTimeoutError(f"the task ran past its limit of {limit:g} s and was cancelled") from None
