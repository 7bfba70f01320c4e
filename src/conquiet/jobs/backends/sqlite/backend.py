"""The SQLite store: one durable file for several processes, the default where there is no server."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar
from urllib.parse import unquote

from conquiet.clock import SYSTEM_CLOCK, Clock
from conquiet.flow import Call, Flow, Signal, Sleep
from conquiet.jobs.backends.caller_connection import driver_connection, is_of
from conquiet.jobs.backends.protocol import PRUNE_STEP, Claim, Inserted, JobRow, Listing, NewRow, Settlement
from conquiet.jobs.backends.registry import names_no_store
from conquiet.jobs.backends.sqlite.steps import SqliteSteps
from conquiet.jobs.model import QueueStats, StoreCapabilities

__all__ = ["SqliteBackend", "open_sqlite"]

T = TypeVar("T")

# How often an idle worker looks whether another process has written: where there was a job, another one may follow soon.
_LOOK_SECONDS = 0.025
_SOON_SECONDS = 0.004
_SOON_FOR = 0.25


def open_sqlite(dsn: str, /, *, clock: Clock | None, awaits: bool) -> SqliteBackend:
    path, _, options = dsn.removeprefix("sqlite://").partition("?")
    synchronous = {"": "FULL", "synchronous=FULL": "FULL", "synchronous=NORMAL": "NORMAL"}.get(options)
    if not path.startswith("/") or path in ("/", "/:memory:") or synchronous is None:
        raise names_no_store(dsn)
    return SqliteBackend(unquote(path[1:]), clock or SYSTEM_CLOCK, synchronous=synchronous, awaits=awaits)


class SqliteBackend(SqliteSteps):
    """Uses WAL, so that other processes can read while one writes, and `synchronous` FULL, so that committed jobs
    survive a power cut.
    """

    capabilities = StoreCapabilities("sqlite", durable=True, own_clock=False, joins_transactions=True)

    def __init__(self, path: str, clock: Clock, *, synchronous: str, awaits: bool) -> None:
        super().__init__(path, clock, synchronous)
        # asyncio must not wait for a disk: calls run on one thread of this store, and handlers' transactions on others.
        # One transaction may wait for the write lock while another holds it, so beginning one and ending another must
        # not use the same thread.
        self._awaits = awaits
        self._changed = -math.inf  # when another process was last seen to write
        self._start_threads()

    def _start_threads(self) -> None:
        awaits = self._awaits
        self._thread = ThreadPoolExecutor(1, "conquiet sqlite") if awaits else None
        self._begins = ThreadPoolExecutor(64, "conquiet sqlite begin") if awaits else None
        self._ends = ThreadPoolExecutor(1, "conquiet sqlite end") if awaits else None

    def after_fork(self, child: bool) -> None:
        super().after_fork(child)
        if child:
            self._start_threads()  # a fork has none of its parent's

    def _call(self, operation: Callable[..., T], *args: Any) -> Flow[T]:
        return (yield from self._call_on(self._thread, operation, *args))

    def _call_on(self, thread: ThreadPoolExecutor | None, operation: Callable[..., T], *args: Any) -> Flow[T]:
        value: T
        if thread is None:
            value = yield Call(operation, *args)
            return value
        if self._closed:
            raise self._is_closed()
        loop = asyncio.get_running_loop()
        # Shielded: the thread cannot be interrupted, so its result must be received.
        value = yield Call(loop.run_in_executor, thread, partial(operation, *args), shield=True)
        return value

    def _call_in(self, connection: Any, operation: Callable[..., T], *args: Any) -> Flow[T]:
        """Run in the caller's transaction, on the thread to which the caller's connection belongs."""
        if connection is None:
            return (yield from self._call(operation, *args, None))
        theirs = yield from driver_connection(connection, self._awaits)
        if self._awaits and is_of("aiosqlite", theirs):
            # It has a thread of its own, and no other way to run several statements there with nothing in between.
            value: T = yield Call(theirs._execute, operation, *args, theirs._conn, shield=True)
            return value
        return (yield from self._call_on(None, operation, *args, theirs))

    def open(self, migrate: str) -> Flow[None]:
        yield from self._call(self._open, migrate)

    def migrate(self, target: int | None) -> Flow[list[str]]:
        return (yield from self._call(self._migrate, target))

    def plan(self, target: int | None) -> Flow[list[tuple[str, str]]]:
        return (yield from self._call(self._plan, target))

    def insert(
        self, queue: str, rows: Sequence[NewRow], skip: bool, connection: Any, notify: bool = True
    ) -> Flow[Inserted]:
        return (yield from self._call_in(connection, self._insert, queue, rows, skip, notify))

    def claim(self, claim: Claim) -> Flow[tuple[list[JobRow], bool]]:
        return (yield from self._call(self._claim, claim))

    def set_aside(self, job_id: Any, token: str, reason: str) -> Flow[None]:
        yield from self._change("set_aside", id=job_id, token=token, reason=reason, now=self._now())

    def set_aside_next(self, queues: Sequence[str], reason: str) -> Flow[bool]:
        names = json.dumps(list(queues))
        return bool((yield from self._change("set_aside_next", queues=names, reason=reason, now=self._now())))

    def settle(
        self, settlements: Sequence[Settlement], connection: Any, begins: Sequence[tuple[str, str]] = ()
    ) -> Flow[set[str]]:
        return (yield from self._call_in(connection, self._settle, settlements, begins))

    def heartbeat(self, leases: Sequence[tuple[str, str]]) -> Flow[dict[str, float]]:
        return (yield from self._call(self._heartbeat, leases))

    def get(self, job_id: str) -> Flow[JobRow | None]:
        rows = yield from self._rows("get", id=job_id)
        return JobRow(*rows[0]) if rows else None

    def select(self, listing: Listing) -> Flow[list[tuple[int, JobRow]]]:
        rows = yield from self._call(partial(self._page, listing))
        return [(row[0], JobRow(*row[1:])) for row in rows]

    def stats(self, queue: str | None) -> Flow[list[QueueStats]]:
        rows = yield from self._rows("stats", queue=queue, now=self._now())
        return [QueueStats(*row) for row in rows]

    def backlog(self, queue: str, limit: int) -> Flow[int]:
        [(count,)] = yield from self._rows("backlog", queue=queue, limit=limit, now=self._now())
        return int(count)

    def _rows(self, name: str, **values: Any) -> Flow[list[Any]]:
        return (yield from self._call(partial(self._read, name, **values)))

    def retry(self, job_id: str) -> Flow[bool]:
        done = yield from self._change("retry", id=job_id)
        self._wakeups.wake_all()
        return done == 1

    def discard(self, job_id: str) -> Flow[bool]:
        return (yield from self._change("discard", id=job_id)) == 1

    def prune(self, older_than: float) -> Flow[int]:
        return (yield from self._change("prune", older_than=older_than, limit=PRUNE_STEP, now=self._now()))

    def _change(self, name: str, **values: Any) -> Flow[int]:
        return (yield from self._call(partial(self._write, name, **values)))

    def next_due(self, queues: Sequence[str]) -> Flow[float | None]:
        ((due,),) = yield from self._rows("next_due", queues=json.dumps(list(queues)))
        if (
            not isinstance(due, float | int) or due == math.inf
        ):  # not a time, written by someone else: never due
            return None
        return max(due - self._now(), 0.0)

    def wait_for_work(self, queues: Sequence[str], seconds: float, stop: Signal) -> Flow[None]:
        """Poll data_version: SQLite sends no notifications, but this number changes when another process commits."""
        with self._wakeups.waiting() as woken:
            # Read the version first, then look for work: whatever is written after the look changes the version.
            version = yield from self._call(self._data_version)
            due = yield from self.next_due(queues)
            now = self._clock.monotonic()
            end = now + (seconds if due is None else min(seconds, due))
            while now < end:
                look = _SOON_SECONDS if now < self._changed + _SOON_FOR else _LOOK_SECONDS
                if (yield Sleep(min(end - now, look), woken, stop)):
                    return
                now = self._clock.monotonic()
                if (yield from self._call(self._data_version)) != version:
                    self._changed = now
                    return

    def rest(self) -> Flow[None]:
        yield from ()

    def begin(self) -> Flow[Any]:
        # On asyncio the write lock is taken here, on a thread: a handler that waited for it in a statement would stop
        # the event loop, and with it the handler that holds the lock.
        begin = ("BEGIN IMMEDIATE",) if self._awaits else ()
        return (yield from self._call_on(self._begins, self._begin, *begin))

    def commit(self, connection: Any) -> Flow[None]:
        yield from self._call_on(self._ends, self._end, connection, "COMMIT")

    def roll_back(self, connection: Any) -> Flow[None]:
        yield from self._call_on(self._ends, self._end, connection, "ROLLBACK")

    def awaiting(self) -> SqliteBackend:
        twin = SqliteBackend(self.path, self._clock, synchronous=self._synchronous, awaits=True)
        twin._unchecked = self._unchecked
        return twin

    def for_worker(self) -> SqliteBackend:
        return self

    def close(self) -> Flow[None]:
        if self._closed:
            return
        yield from self._call(self._close)
        self._closed = True
        for thread in (self._thread, self._begins, self._ends):
            if thread is not None:
                thread.shutdown(wait=False)
