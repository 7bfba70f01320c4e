"""The app: where tasks are defined, queued and run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import MappingProxyType, TracebackType
from typing import Any, ParamSpec, TypeVar, Unpack, overload

from conquiet.app.stores import StoreOptions, Stores
from conquiet.app.task import Task
from conquiet.app.worker import CONTEXT, find_task, make_worker, run_call, run_call_async
from conquiet.clock import SYSTEM_CLOCK, Clock
from conquiet.errors import JobConfigError, redact
from conquiet.jobs import (
    AsyncJobStore,
    Job,
    JobContext,
    JobStore,
    JobWorker,
    PayloadLimits,
    RetrySchedule,
    WorkerCounts,
)
from conquiet.payload import DEFAULT_LIMITS

__all__ = ["Conquiet"]

P = ParamSpec("P")
R = TypeVar("R")


class Conquiet:
    """Tasks, and the store that queues them: `sqlite:///jobs.db`, `postgresql://…`, or `memory://` for tests.

    `options` are those of `open_store`: `retry`, `clock`, `random`, `max_lease_expiries`, `limits`, `migrate`. The
    store is opened when it is first used, so that an app can be made while a module is imported. Thread-safe.
    """

    def __init__(self, dsn: str, **options: Unpack[StoreOptions]) -> None:
        self.dsn = dsn
        self.clock: Clock = options.get("clock") or SYSTEM_CLOCK
        self._tasks: dict[str, Task[..., Any]] = {}
        self.limits: PayloadLimits = options.get("limits", DEFAULT_LIMITS)
        self.stores = Stores(dsn, options)

    def __repr__(self) -> str:
        return f"<Conquiet {redact(self.dsn)!r} with {len(self._tasks)} tasks>"

    # -- tasks ---------------------------------------------------------------------------------------------------

    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def task(
        self,
        *,
        queue: str = "default",
        retry: RetrySchedule | None = None,
        timeout: float | None = None,
        priority: int = 5,
        name: str | None = None,
    ) -> Callable[[Callable[P, R]], Task[P, R]]: ...
    def task(self, *function: Any, **settings: Any) -> Any:
        """Make a task of a function, sync or async. Jobs find it by its name, which is the function's own.

        `retry` replaces the store's schedule, `timeout` (seconds) the worker's limit; a lower `priority` comes first.
        """

        if function:
            return self._add(Task(self, *function))
        return lambda function: self._add(Task(self, function, **settings))

    def _add(self, task: Task[P, R]) -> Task[P, R]:
        old = self._tasks.get(task.name)
        # The same definition again is a module reloaded, or a notebook's cell run once more.
        if old is not None and _place(old) != _place(task):
            raise JobConfigError(
                f"there is a task {task.name!r} already, in {old.function.__module__}: give this one another name, "
                '@app.task(name="…")'
            )
        self._tasks[task.name] = task
        return task

    @property
    def tasks(self) -> Mapping[str, Task[..., Any]]:
        """The tasks by name, in the order of their definition."""
        return MappingProxyType(self._tasks)

    @property
    def queues(self) -> tuple[str, ...]:
        """The queues of the tasks."""
        return tuple(dict.fromkeys(task.queue for task in self._tasks.values()))

    # -- running -------------------------------------------------------------------------------------------------

    def worker(
        self,
        queues: str | Sequence[str] | Mapping[str, int | None] | None = None,
        *,
        concurrency: int = 8,
        isolation: str | None = None,
        timeout: float | None = None,
        lease_ttl: float = 5.0,
        prefetch: int | None = None,
        shutdown_timeout: float = 30.0,
        name: str | None = None,
        location: str | None = None,
    ) -> JobWorker:
        """A worker for the tasks of these queues, by default all: `run()`, `run_until_idle()`, `stop()`.

        `queues` may map names to numbers: such a queue has so many places of its own, the others (None) share
        `concurrency`. `isolation` is "async" where all tasks are coroutine functions, else "thread"; with "process",
        `location` ("package.module:app") says where a child process finds the app, if that is not plain.
        `timeout` is for the tasks that have none of their own.
        """
        return make_worker(
            self,
            queues,
            isolation=isolation,
            timeout=timeout,
            location=location,
            concurrency=concurrency,
            lease_ttl=lease_ttl,
            prefetch=prefetch,
            shutdown_timeout=shutdown_timeout,
            worker=name,
        )

    def run_job(self, job: Job, context: JobContext) -> None:
        """Run the task of a job: the handler for a `JobWorker` of your own, and for every child process."""
        run_call(find_task(self._tasks, job), job, context)

    async def run_job_async(self, job: Job, context: JobContext) -> None:
        """`run_job` for a `JobWorker` of your own with `isolation="async"`."""
        await run_call_async(find_task(self._tasks, job), job, context)

    @property
    def context(self) -> JobContext:
        """Inside a task: its job, `connection` for exactly-once effects, `version` for fencing, `lease_lost`."""
        context = CONTEXT.get(None)
        if context is None:
            raise JobConfigError("there is no job here: app.context is for tasks, while a worker runs them")
        return context

    def drain(self, *, wait_for_delayed: bool = False) -> WorkerCounts:
        """Run what is queued, one job after the other, until nothing is due (or, if told to wait, nothing is left)."""
        # On threads, whatever the tasks are: so it works inside a running event loop too.
        worker = self.worker(concurrency=1, isolation="thread")
        return worker.run_until_idle(wait_for_delayed=wait_for_delayed)

    async def drain_async(self, *, wait_for_delayed: bool = False) -> WorkerCounts:
        """`drain` for asyncio: coroutines run in this event loop, if all tasks are such."""
        if all(task.is_async for task in self._tasks.values()):
            worker = self.worker(concurrency=1)
            return await worker.run_async(until_idle=True, wait_for_delayed=wait_for_delayed)
        return await asyncio.to_thread(self.drain, wait_for_delayed=wait_for_delayed)

    # -- the store -----------------------------------------------------------------------------------------------

    @property
    def store(self) -> JobStore:
        """The store behind the app."""
        return self.stores.current()

    async def async_store(self) -> AsyncJobStore:
        """The same store for the event loop that runs here; `close_async` closes it."""
        return await self.stores.for_loop()

    def use_store(self, store: JobStore) -> AbstractContextManager[None]:
        """Inside the block the app uses this store in place of its own, on every thread. For tests."""
        return self.stores.replaced_by(store)

    def close(self) -> None:
        """Close the store. Whatever uses the app next opens it again; what was in `memory://` is gone."""
        self.stores.close()

    async def close_async(self) -> None:
        """`close`, and what the event loop that runs here has opened too."""
        await self.stores.close_async()

    def __enter__(self) -> Conquiet:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Conquiet:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close_async()


def _place(task: Task[..., Any]) -> tuple[str, str]:
    return task.function.__module__, task.function.__qualname__
