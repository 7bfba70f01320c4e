"""Our stores for the conformance suite, synchronous and asynchronous, each with a clock that the tests move."""

from __future__ import annotations

import random
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg

from conquiet.jobs import AsyncJobStore, JobStore, RetrySchedule, open_async_store, open_store
from conquiet.jobs.backends.memory import MemoryBackend
from conquiet.jobs.operations import JobOperations
from conquiet.payload import DEFAULT_LIMITS
from conquiet.testing import ManualClock
from tests.integration.queue.variants import Blocking, LoopThread

START = 1_700_000_000.0

# A server whose clock the tests move: this function comes before the real `clock_timestamp()` on the search path.
MOVED_CLOCK = f"""
CREATE SCHEMA moved;
CREATE TABLE moved.reading (seconds float8 NOT NULL);
INSERT INTO moved.reading VALUES ({START});
CREATE FUNCTION moved.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE
    AS 'SELECT to_timestamp(seconds) FROM moved.reading';
"""
SEARCH_PATH = "?options=" + quote("-c search_path=moved,pg_catalog,public")


class Clock(ManualClock):
    """A clock that an administrator can set back."""

    def turn_back(self, seconds: float) -> None:
        self._start -= seconds


class BlockingStore(Blocking):
    """An AsyncJobStore whose coroutines run on the loop of a thread, while the caller waits."""

    @contextmanager
    def listen(self, *queues: str) -> Iterator[Callable[[float], None]]:
        listening = self._target.listen(*queues)
        wait = self._loop.wait(listening.__aenter__())
        yield lambda seconds: self._loop.wait(wait(seconds))
        self._loop.wait(listening.__aexit__(None, None, None))


class Source:
    """What all kinds share: opening either variant, and closing every store at the end."""

    def __init__(self, loop: LoopThread | None) -> None:
        self._loop = loop
        self._opened: list[Any] = []

    def open_dsn(self, dsn: str, **options: Any) -> Any:
        if self._loop is None:
            store: Any = open_store(dsn, **options)
        else:
            store = BlockingStore(self._loop.wait(open_async_store(dsn, **options)), self._loop)
        self._opened.append(store)
        return store

    def close(self) -> None:
        for store in self._opened:
            store.close()


class MemorySource(Source):
    def __init__(self, loop: LoopThread | None) -> None:
        super().__init__(loop)
        self.clock = Clock(START)
        self._backend = MemoryBackend(self.clock)

    def open(self, **options: Any) -> Any:
        """Open another store on the same memory, which `open_store` does not offer."""
        defaults = {"retry": RetrySchedule(), "random": random.random, "max_lease_expiries": 20}
        operations = JobOperations(self._backend, **{**defaults, "limits": DEFAULT_LIMITS, **options})
        if self._loop is None:
            return JobStore("memory://", operations, "auto")
        return BlockingStore(AsyncJobStore("memory://", operations), self._loop)

    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)

    def turn_back(self, seconds: float) -> None:
        self.clock.turn_back(seconds)

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        raise AssertionError("the memory store says that it has no transactions")
        yield


class SqliteSource(Source):
    def __init__(self, folder: Path, loop: LoopThread | None) -> None:
        super().__init__(loop)
        self.clock = Clock(START)
        self.path = folder / "jobs.db"

    @property
    def dsn(self) -> str:
        return f"sqlite:///{self.path}?synchronous=NORMAL"  # durability has tests of its own

    def open(self, **options: Any) -> Any:
        return self.open_dsn(self.dsn, clock=self.clock, **options)

    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)

    def turn_back(self, seconds: float) -> None:
        self.clock.turn_back(seconds)

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        # An asynchronous store runs on its own thread.
        connection = sqlite3.connect(self.path, check_same_thread=False)
        try:
            with connection:
                yield connection
        finally:
            connection.close()


def waiting_backend(admin: psycopg.Connection, patience: float = 20.0) -> int:
    """Wait until a connection to `admin`'s database waits for a lock. Return its process id."""
    end = time.monotonic() + patience
    while time.monotonic() < end:
        row = admin.execute(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        ).fetchone()
        if row is not None:
            return int(row[0])
    raise AssertionError(f"no connection waited for a lock within {patience} s")


class PostgresSource(Source):
    """Stores on the database with the moved clock. `admin` is a connection to it; its jobs are deleted first."""

    def __init__(self, dsn: str, admin: psycopg.Connection, loop: LoopThread | None) -> None:
        super().__init__(loop)
        self.dsn = dsn
        self._admin = admin
        self._admin.execute("UPDATE reading SET seconds = %s", (START,))
        if self._admin.execute("SELECT to_regclass('conquiet_jobs')").fetchone() != (None,):
            self._admin.execute("DELETE FROM conquiet_jobs")

    @staticmethod
    def prepare(dsn: str) -> str:
        """Give a new database a clock that can be moved. Return the DSN of stores that use this clock."""
        with psycopg.connect(dsn, autocommit=True) as admin:
            admin.execute(MOVED_CLOCK)
        return dsn + SEARCH_PATH

    def open(self, **options: Any) -> Any:
        return self.open_dsn(self.dsn, **options)

    def advance(self, seconds: float) -> None:
        self._admin.execute("UPDATE reading SET seconds = seconds + %s", (seconds,))

    def turn_back(self, seconds: float) -> None:
        self.advance(-seconds)

    def wait_for_a_lock(self) -> int:
        """Wait until a connection to this database waits for a lock. Return its process id."""
        return waiting_backend(self._admin)

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        if self._loop is None:
            with psycopg.connect(self.dsn) as connection:
                yield connection
            return
        connection = self._loop.wait(psycopg.AsyncConnection.connect(self.dsn))
        try:
            yield connection
            self._loop.wait(connection.commit())
        finally:
            self._loop.wait(connection.close())
