"""A `JobWorker` for an app: finds the task of a job, restores its arguments and calls its function."""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar, copy_context
from typing import TYPE_CHECKING, Any, TypeVar

from conquiet.app.arguments import TASK, task_name
from conquiet.app.task import Task
from conquiet.checks import checked_queues, checked_seconds
from conquiet.errors import JobConfigError, JobRejectedError, TaskMismatchError
from conquiet.flow import refuse_deferred
from conquiet.jobs import Job, JobContext, JobPlan, JobPlans, JobWorker

if TYPE_CHECKING:
    from conquiet.app.application import Conquiet

__all__ = ["CONTEXT", "apart_from_loop", "find_task", "make_worker", "run_call", "run_call_async"]

CONTEXT: ContextVar[JobContext] = ContextVar("conquiet_job_context")

Tasks = Mapping[str, Task[..., Any]]
T = TypeVar("T")


def make_worker(
    app: Conquiet,
    queues: str | Sequence[str] | Mapping[str, int | None] | None,
    *,
    isolation: str | None,
    timeout: float | None,
    location: str | None,
    **settings: Any,
) -> JobWorker:
    if not app.tasks:
        raise JobConfigError(
            "this app has no tasks: decorate a function with @app.task, or import its module"
        )
    names = app.queues if queues is None else checked_queues(queues, error=JobConfigError)
    left_over = [name for name in names if name not in app.queues]
    for name in left_over:
        if not app.store.stats(name):  # if there are jobs, their task has since moved to another queue
            raise JobConfigError(
                f"no task uses the queue {name!r}, and no job is in it; the queues are: "
                + ", ".join(map(repr, app.queues))
            )
    served = [task for task in app.tasks.values() if left_over or task.queue in names]
    isolation = _isolation(served, isolation)
    default = (
        None
        if timeout is None
        else checked_seconds("timeout", timeout, above_zero=True, error=JobConfigError)
    )
    child = _ChildHandler(app, location) if isolation == "process" else None
    return JobWorker(
        app.store,
        _TaskPlans(app.tasks, isolation, default, child),
        queues=names if queues is None else queues,
        isolation=isolation,
        **settings,
    )


class _TaskPlans(JobPlans):
    """Looks up the task of a job and its plan."""

    def __init__(
        self, tasks: Tasks, isolation: str, default_limit: float | None, child: _ChildHandler | None
    ) -> None:
        self._tasks = tasks
        self._isolation = isolation
        self._default_limit = default_limit
        self._child = child
        self._plans: dict[Task[..., Any], JobPlan] = {}  # by the task itself: its name may be redefined

    def plan(self, job: Job) -> JobPlan:
        task = find_task(self._tasks, job)
        return self._plans.get(task) or self._plans.setdefault(task, self._plan_of(task))

    def task(self, job: Job) -> str:
        return task_name(job.payload) or ""

    def knows(self, task: str) -> bool:
        return task in self._tasks

    def handlers(self, queues: Sequence[str]) -> Iterable[Callable[..., Any]]:
        return () if self._child is None else (self._child,)

    def _plan_of(self, task: Task[..., Any]) -> JobPlan:
        limit = self._default_limit if task.timeout is None else task.timeout
        if self._child is not None:
            return JobPlan(self._child, limit, task.retry)

        async def run_async(job: Job, context: JobContext) -> None:
            await run_call_async(task, job, context)

        def run(job: Job, context: JobContext) -> None:
            run_call(task, job, context)

        run.__qualname__ = run_async.__qualname__ = "the task"  # for messages about its time limit
        # Without "mixed" all tasks of these queues are of one kind. A job of another task may be there all the same.
        in_loop = task.is_async if self._isolation == "mixed" else self._isolation == "async"
        return JobPlan(run_async if in_loop else run, limit, task.retry)


def find_task(tasks: Tasks, job: Job) -> Task[..., Any]:
    """Return the task of a job. Raise TaskMismatchError if this app does not have it: other workers may."""
    name = task_name(job.payload)
    if name is None:
        raise JobRejectedError(
            f"this job was not enqueued by a task: its payload has no {TASK!r}. Use a queue of its own for it"
        )
    task = tasks.get(name)
    if task is None:
        raise TaskMismatchError(
            f"this app has no task {name!r} (it has: {', '.join(map(repr, sorted(tasks))) or 'none'}). Deploy the "
            "code that has it, or import the module that defines it, and then retry the job"
        )
    return task


def run_call(task: Task[..., Any], job: Job, context: JobContext) -> None:
    """Call the task on this thread. A coroutine gets its own event loop."""
    args, kwargs = task.parameters.call(job.payload)
    token = CONTEXT.set(context)
    try:
        result: Any = task.function(*args, **kwargs)
        # A plain function may return a coroutine, too, for example a decorated coroutine function.
        if inspect.iscoroutine(result):
            result = apart_from_loop(lambda: asyncio.run(result))
        if result is not None:
            refuse_deferred(task.function, result)
    finally:
        CONTEXT.reset(token)


async def run_call_async(task: Task[..., Any], job: Job, context: JobContext) -> None:
    args, kwargs = task.parameters.call(job.payload)
    token = CONTEXT.set(context)
    try:
        result = task.function(*args, **kwargs)
        if inspect.isawaitable(result):
            result = await result
        if result is not None:
            refuse_deferred(task.function, result)
    finally:
        CONTEXT.reset(token)


def apart_from_loop(call: Callable[[], T]) -> T:
    """Call it here, or on another thread if an event loop is running on this one."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return call()
    with ThreadPoolExecutor(1, "conquiet inline") as thread:
        return thread.submit(copy_context().run, call).result()


def _isolation(tasks: Sequence[Task[..., Any]], wanted: str | None) -> str:
    """Return the isolation. Coroutines share the worker's event loop, whatever other tasks there are."""
    plain = [task.name for task in tasks if not task.is_async]
    if wanted == "async" and plain:
        raise JobConfigError(
            f"task {plain[0]!r} is a plain function, which would block the event loop: make it async def, or leave out "
            "isolation= (then plain functions run on threads beside the loop)"
        )
    if wanted not in (None, "thread"):
        return wanted
    if all(task.is_async for task in tasks):
        return "async"
    return "thread" if len(plain) == len(tasks) else "mixed"


class _ChildHandler:
    """Names the app for a child process: a module and a variable in it."""

    def __init__(self, app: Conquiet, location: str | None) -> None:
        module, name = _place(app) if location is None else _parsed(location)
        self.__module__ = module
        self.__qualname__ = f"{name}.run_job"

    def __call__(self, job: Job, context: JobContext) -> None:
        raise NotImplementedError("only a child process calls this, after it has found the app by its name")


def _parsed(location: str) -> tuple[str, str]:
    module, colon, name = location.partition(":")
    if not module or not colon or not name:
        raise JobConfigError(f"location must be 'package.module:app', not {location!r}")
    return module, name


def _place(app: Conquiet) -> tuple[str, str]:
    modules = dict.fromkeys(("__main__", *(task.function.__module__ for task in app.tasks.values())))
    for module in modules:
        for name, value in vars(sys.modules[module]).items() if module in sys.modules else ():
            if value is app:
                return module, name
    raise JobConfigError(
        "isolation='process' needs the app as a variable of a module that a child process can import: name it "
        "with location='package.module:app'"
    )
