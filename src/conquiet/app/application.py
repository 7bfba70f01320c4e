"""The app: defines, queues and runs tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import MappingProxyType, TracebackType
from typing import Any, ParamSpec, TypeVar, Unpack, overload

from conquiet.app.stores import StoreOptions, Stores
from conquiet.app.task import Task
from conquiet.app.worker import CONTEXT, apart_from_loop, find_task, make_worker, run_call, run_call_async
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
    """Tasks and the store that queues them: `sqlite:///jobs.db`, `postgresql://…`, or `memory://` for tests.

    `options` are those of `open_store`: `retry`, `clock`, `random`, `max_lease_expiries`, `limits`, `migrate`,
    `max_connections`, `retention`. The store is opened at first use, so that an app can be created while a module is
    imported. Thread-safe.
    """

    def __init__(self, dsn: str, **options: Unpack[StoreOptions]) -> None:
        self.dsn = dsn
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
        """Make a function, sync or async, a task. Jobs refer to it by `name`, by default the name of the function.

        `retry` replaces the store's schedule, `timeout` (seconds) the worker's limit; a lower `priority` runs first.
        """

        if function:
            return self._add(Task(self, *function))
        return lambda function: self._add(Task(self, function, **settings))

    def _add(self, task: Task[P, R]) -> Task[P, R]:
        old = self._tasks.get(task.name)
        # The same definition again comes from a reloaded module, or from a notebook cell that was run again.
        if old is not None and _place(old) != _place(task):
            raise JobConfigError(
                f"there is already a task {task.name!r} in {old.function.__module__}: give this one another name, "
                '@app.task(name="…")'
            )
        self._tasks[task.name] = task
        return task

    @property
    def tasks(self) -> Mapping[str, Task[..., Any]]:
        """The tasks by name, in the order in which they were defined."""
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
        ends_when_hung: bool = False,
        handle_signals: bool = False,
        unknown_after: float = 900.0,
    ) -> JobWorker:
        """Create a worker for the tasks of these queues (default: all): `run()`, `run_until_idle()`, `stop()`.

        `queues` may map names to numbers: such a queue has a concurrency of its own, the others (None) share
        `concurrency`. Coroutine functions run in the event loop of the worker, plain functions on threads. With
        `isolation="process"`, `location` ("package.module:app") says where a child process finds the app; it is needed only if the
        app is not a variable of a module with tasks. `timeout` applies to tasks that have none of their own. With
        `ends_when_hung`, `run()` ends with `AbandonedThreadsError` when 16 tasks hang past their limits, so that the
        process can be replaced; without, the worker claims nothing until one of them ends. With `handle_signals`,
        SIGTERM stops the worker if it runs in the main thread; `conquiet worker` sets it. A job whose task is not here,
        or does not take its arguments, is given back for workers of another version, and Failed when none could run it
        for `unknown_after` seconds.
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
            ends_when_hung=ends_when_hung,
            handle_signals=handle_signals,
            unknown_after=unknown_after,
        )

    def run_job(self, job: Job, context: JobContext) -> None:
        """Run the task of a job. This is the handler for your own `JobWorker`, and in child processes."""
        run_call(find_task(self._tasks, job), job, context)

    async def run_job_async(self, job: Job, context: JobContext) -> None:
        """`run_job` for your own `JobWorker` with `isolation="async"`."""
        await run_call_async(find_task(self._tasks, job), job, context)

    @property
    def context(self) -> JobContext:
        """Inside a task: its job, `connection` for exactly-once effects, `version` for fencing, `lease_lost`."""
        context = CONTEXT.get(None)
        if context is None:
            raise JobConfigError(
                "no job is running here: app.context is available only in a task that a worker runs"
            )
        return context

    def drain(self, *, wait_for_delayed: bool = False) -> WorkerCounts:
        """Run the queued jobs one after the other until none is due, or with `wait_for_delayed` until none is left."""
        worker = self.worker(concurrency=1)
        return apart_from_loop(lambda: worker.run_until_idle(wait_for_delayed=wait_for_delayed))

    async def drain_async(self, *, wait_for_delayed: bool = False) -> WorkerCounts:
        """`drain` for asyncio. Coroutine functions run in this event loop, others on threads."""
        if any(task.is_async for task in self._tasks.values()):
            worker = self.worker(concurrency=1)
            return await worker.run_async(until_idle=True, wait_for_delayed=wait_for_delayed)
        return await asyncio.to_thread(self.drain, wait_for_delayed=wait_for_delayed)

    # -- the store -----------------------------------------------------------------------------------------------

    @property
    def store(self) -> JobStore:
        """The store behind the app."""
        return self.stores.current()

    async def async_store(self) -> AsyncJobStore:
        """Return the same store for the running event loop; `close_async` closes it."""
        return await self.stores.for_loop()

    def use_store(self, store: JobStore) -> AbstractContextManager[None]:
        """Use this store in place of the app's own inside the block, on every thread. For tests."""
        return self.stores.replaced_by(store)

    def close(self) -> None:
        """Close the store. The next use of the app opens it again; the jobs of `memory://` are lost."""
        self.stores.close()

    async def close_async(self) -> None:
        """Like `close`, and also close the store of the running event loop."""
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
