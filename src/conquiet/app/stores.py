"""The store behind an app: opened at first use, for threads and for event loops."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypedDict

from conquiet.app.arguments import task_name
from conquiet.clock import Clock
from conquiet.flow import run_async
from conquiet.jobs import AsyncJobStore, JobStore, PayloadLimits, RetrySchedule, open_store

__all__ = ["StoreOptions", "Stores"]


class StoreOptions(TypedDict, total=False):
    """The options of `open_store`."""

    retry: RetrySchedule
    clock: Clock | None
    random: Callable[[], float] | None
    max_lease_expiries: int
    limits: PayloadLimits
    migrate: str
    max_connections: int
    retention: float | None


class Stores:
    """One store for all threads, and one for each event loop."""

    def __init__(self, dsn: str, options: StoreOptions) -> None:
        self._dsn = dsn
        self._options = options
        self._lock = threading.Lock()
        self._store: JobStore | None = None
        self._replacement: JobStore | None = None
        self._async_stores: dict[asyncio.AbstractEventLoop, asyncio.Task[AsyncJobStore]] = {}

    def current(self) -> JobStore:
        return self._replacement or self._store or self._opened()

    @contextmanager
    def replaced_by(self, store: JobStore) -> Iterator[None]:
        outer, self._replacement = self._replacement, store
        try:
            yield
        finally:
            self._replacement = outer

    def _opened(self) -> JobStore:
        with self._lock:
            if self._store is None:
                self._store = open_store(self._dsn, **self._options)
                self._store.operations.task_of = task_name
            return self._store

    async def for_loop(self) -> AsyncJobStore:
        """Return the store for the running event loop."""
        if self._replacement is not None:
            return AsyncJobStore(self._replacement.dsn, self._replacement.operations.awaiting())
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
        if operations.backend is not store.operations.backend:  # the memory store uses the same back end
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
