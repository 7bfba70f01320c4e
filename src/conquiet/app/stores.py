"""Where the calls of an app's tasks are queued: its store, opened at first use, for threads and for event loops."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypedDict

from conquiet.app.calls import Tasks
from conquiet.app.task import Task
from conquiet.clock import Clock
from conquiet.errors import JobConfigError, PayloadError
from conquiet.flow import run_async
from conquiet.jobs import AsyncJobStore, Job, JobStore, NewJob, PayloadLimits, RetrySchedule, open_store
from conquiet.payload import DEFAULT_LIMITS
from conquiet.testing.inline import InlineStore

__all__ = ["StoreOptions", "Stores"]


class StoreOptions(TypedDict, total=False):
    """What `open_store` takes besides the DSN."""

    retry: RetrySchedule
    clock: Clock | None
    random: Callable[[], float] | None
    max_lease_expiries: int
    limits: PayloadLimits
    migrate: str


class Stores:
    def __init__(self, dsn: str, options: StoreOptions, tasks: Tasks) -> None:
        self._dsn = dsn
        self._options = options
        self._tasks = tasks
        self._lock = threading.Lock()
        self._store: JobStore | None = None
        self._inline: InlineStore | None = None
        self._async_stores: dict[asyncio.AbstractEventLoop, asyncio.Task[AsyncJobStore]] = {}

    def current(self) -> JobStore:
        return self._opened() if self._inline is None else self._inline.store

    def enqueue(self, task: Task[..., Any], new: NewJob, connection: Any) -> Job:
        with _arguments_named(task, [new]):
            if self._inline is not None:
                return self._inline.run(task, new)
            return self._opened().enqueue(
                task.queue,
                new.payload,
                id=new.id,
                priority=new.priority,
                delay=new.delay,
                max_retries=new.max_retries,
                correlation_id=new.correlation_id,
                connection=connection,
            )

    async def enqueue_async(self, task: Task[..., Any], new: NewJob, connection: Any) -> Job:
        with _arguments_named(task, [new]):
            if self._inline is not None:
                return await self._inline.run_async(task, new)
            store = await self.for_loop()
            return await store.enqueue(
                task.queue,
                new.payload,
                id=new.id,
                priority=new.priority,
                delay=new.delay,
                max_retries=new.max_retries,
                correlation_id=new.correlation_id,
                connection=connection,
            )

    def enqueue_many(self, task: Task[..., Any], news: Sequence[NewJob], connection: Any) -> list[str]:
        with _arguments_named(task, news):
            if self._inline is not None:
                return [self._inline.run(task, new).id for new in news]
            return self._opened().enqueue_many(task.queue, news, connection=connection)

    @contextmanager
    def inline(self) -> Iterator[None]:
        outer, self._inline = (
            self._inline,
            InlineStore(self._tasks, self._options.get("limits", DEFAULT_LIMITS)),
        )
        try:
            yield
        finally:
            self._inline = outer

    def refuse_inline(self) -> None:
        if self._inline is not None:
            raise JobConfigError(
                "inside inline() there is nothing for a worker: calls are run where they are made"
            )

    def _opened(self) -> JobStore:
        if self._store is None:
            with self._lock:
                if self._store is None:
                    self._store = open_store(self._dsn, **self._options)
        return self._store

    async def for_loop(self) -> AsyncJobStore:
        """The store for the event loop that runs here."""
        loop = asyncio.get_running_loop()
        for ended in [other for other in self._async_stores if other.is_closed()]:
            del self._async_stores[ended]
        opening = self._async_stores.get(loop)
        if opening is None or _failed(opening):
            opening = self._async_stores[loop] = loop.create_task(self._open_for_loop())
        return await asyncio.shield(opening)

    async def _open_for_loop(self) -> AsyncJobStore:
        store = await asyncio.to_thread(self._opened)
        operations = store.operations.awaiting()
        if operations.backend is not store.operations.backend:  # in memory there is only one
            await run_async(operations.backend.open("never"))
        return AsyncJobStore(self._dsn, operations)

    def close(self) -> None:
        with self._lock:
            store, self._store = self._store, None
        if store is not None:
            store.close()

    async def close_async(self) -> None:
        opening = self._async_stores.pop(asyncio.get_running_loop(), None)
        if opening is not None and not _failed(opening):
            await (await opening).close()
        await asyncio.to_thread(self.close)


def _failed(opening: asyncio.Task[AsyncJobStore]) -> bool:
    return opening.done() and (opening.cancelled() or opening.exception() is not None)


@contextmanager
def _arguments_named(task: Task[..., Any], news: Sequence[NewJob]) -> Iterator[None]:
    """A payload that is refused is told by the argument that is the cause."""
    try:
        yield
    except PayloadError as error:
        for new in news:
            named = task.parameters.explain(new.payload, error)
            if named is not error:
                raise named from None
        raise
