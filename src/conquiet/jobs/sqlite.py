"""The SQLite store: one file, durable, several processes; the default where there is no server."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from conquiet.clock import Clock
from conquiet.errors import DuplicateJobError, JobConfigError, JobError, StoreUnavailableError
from conquiet.flow import Call, Flow, Signal, Sleep
from conquiet.jobs import schema
from conquiet.jobs.backend import Claim, JobRow, NewRow, Settlement
from conquiet.jobs.connections import driver_connection
from conquiet.jobs.model import JobState, QueueStats, StoreCapabilities
from conquiet.jobs.queries import EXPIRED_ERROR, load, migrations
from conquiet.jobs.sqlite_connection import commits_by_itself, connected
from conquiet.jobs.wakeups import Wakeups

__all__ = ["SqliteBackend"]

T = TypeVar("T")

_COLUMNS = ", ".join(JobRow._fields)
_SQL = load("sqlite", columns=_COLUMNS)
_MIGRATIONS = migrations("sqlite")
_LOOK_SECONDS = 0.025  # how often an idle worker looks whether another process has written


class SqliteBackend:
    """One connection, used by one call at a time; each call is one BEGIN IMMEDIATE … COMMIT.

    WAL, so that other processes can read while one writes; `synchronous` FULL, so that what was committed survives
    a power cut.
    """

    capabilities = StoreCapabilities("sqlite", durable=True, own_clock=False, joins_transactions=True)

    def __init__(self, path: str, clock: Clock, *, synchronous: str, awaits: bool) -> None:
        if path in ("", ":memory:"):  # SQLite would take both for a database that nothing survives
            raise JobConfigError(
                "a SQLite store needs a file: sqlite:///jobs.db, or sqlite:////absolute/path.db"
            )
        self.path = os.path.abspath(path)  # the same file, wherever the process goes
        self._pid = os.getpid()
        self._clock = clock
        self._synchronous = synchronous
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._closed = False
        self._wakeups = Wakeups()
        # asyncio must not wait for a disk: there, calls run on one thread of this store's own, and handlers'
        # transactions on others. One of these waits for the write lock while another holds it, so beginning and
        # ending must not wait for each other's thread.
        self._thread = ThreadPoolExecutor(1, "conquiet sqlite") if awaits else None
        self._begins = ThreadPoolExecutor(64, "conquiet sqlite begin") if awaits else None
        self._ends = ThreadPoolExecutor(1, "conquiet sqlite end") if awaits else None

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
        # Shielded: the thread cannot be interrupted, so what it did must be heard.
        value = yield Call(loop.run_in_executor, thread, partial(operation, *args), shield=True)
        return value

    def _call_in(self, connection: Any, operation: Callable[..., T], *args: Any) -> Flow[T]:
        """In the caller's transaction: here and now, where the caller's connection is at home."""
        thread = self._thread if connection is None else None
        return (yield from self._call_on(thread, operation, *args, connection))

    def open(self, migrate: str) -> Flow[None]:
        yield from self._call(self._open, migrate)

    def _open(self, migrate: str) -> None:
        with self._translated("open"):
            self._connection = self._connected()
        try:
            # Looked at without the write lock, which somebody's transaction may hold for long.
            if schema.check_version(self._version(), _MIGRATIONS[-1].version, self.path, migrate):
                with self._transaction("open"):
                    self._step_to(None)
        except BaseException:
            self._close()
            raise

    def _connected(self, *begin: str) -> sqlite3.Connection:
        return connected(self.path, self._synchronous, *begin)

    def _version(self) -> int | None:
        found = self._execute("SELECT 1 FROM sqlite_master WHERE name = 'conquiet_schema'").fetchone()
        return self._execute("SELECT version FROM conquiet_schema").fetchone()[0] or None if found else None

    def migrate(self, target: int | None) -> Flow[list[str]]:
        return (yield from self._call(self._migrate, target))

    def _migrate(self, target: int | None) -> list[str]:
        if self._connection is None and not self._closed:
            with self._translated("open"):
                self._connection = self._connected()
        with self._transaction("migrate"):
            return self._step_to(target)

    def _step_to(self, target: int | None) -> list[str]:
        found = self._version()
        if found is None:
            self._execute("CREATE TABLE IF NOT EXISTS conquiet_schema (version INTEGER NOT NULL)")
            self._execute("DELETE FROM conquiet_schema")
            self._execute("INSERT INTO conquiet_schema VALUES (0)")
        done = []
        for name, sql, version in schema.steps(_MIGRATIONS, found or 0, target):
            for statement in filter(str.strip, sql.split(";")):
                self._execute(statement)
            self._execute("UPDATE conquiet_schema SET version = :version", version=version)
            done.append(name)
        return done

    def insert(
        self, queue: str, rows: Sequence[NewRow], skip: bool, connection: Any
    ) -> Flow[dict[str, float]]:
        return (yield from self._call_in(connection, self._insert, queue, rows, skip))

    def _insert(self, queue: str, rows: Sequence[NewRow], skip: bool, connection: Any) -> dict[str, float]:
        with self._transaction("enqueue", connection) as theirs:
            now = self._clock.time()  # here and below: once we have the lock, which may have taken a while
            if (
                theirs is not None
            ):  # take it there too, so that nobody adds one of these ids after we have looked
                self._execute("DELETE FROM conquiet_jobs WHERE 0", theirs)
            taken = {
                row[0]
                for row in self._execute(_SQL["existing"], theirs, ids=json.dumps([r.id for r in rows]))
            }
            fresh: dict[str, NewRow] = {}
            double = []
            for row in rows:
                if row.id in taken or row.id in fresh:
                    double.append(row.id)
                else:
                    fresh[row.id] = row
            if double and not skip:
                raise DuplicateJobError(
                    f"a job with id {double[0]!r} exists (or is twice in this call); nothing was enqueued",
                    double,
                )
            with self._translated("enqueue"):
                (theirs or self._open_connection()).executemany(
                    _SQL["insert"],
                    [
                        {
                            **row._asdict(),
                            "queue": queue,
                            "now": now,
                            "retry_at": now + row.delay if row.delay else None,
                        }
                        for row in fresh.values()
                    ],
                )
        self._wakeups.wake_all()
        return dict.fromkeys(fresh, now)

    def claim(self, claim: Claim) -> Flow[tuple[list[JobRow], bool]]:
        return (yield from self._call(self._claim, claim))

    def _claim(self, claim: Claim) -> tuple[list[JobRow], bool]:
        values = {**claim._asdict(), "queues": json.dumps(claim.queues)}
        with self._transaction("claim"):
            values["now"] = self._clock.time()
            self._execute(_SQL["promote"], **values)
            claimed = self._execute(_SQL["claim"], **values, expired_error=EXPIRED_ERROR).fetchall()
        claimed.sort(key=lambda row: (row[4], row[0]))  # RETURNING keeps no order: priority, then seq
        rows = [JobRow(*row[1:]) for row in claimed]
        leased = [row for row in rows if row.state == JobState.IN_FLIGHT]
        return leased, len(leased) < len(rows)

    def settle(self, settlements: Sequence[Settlement], connection: Any) -> Flow[set[str]]:
        return (yield from self._call_in(connection, self._settle, settlements))

    def _settle(self, settlements: Sequence[Settlement], connection: Any) -> set[str]:
        with self._transaction("settle", connection) as theirs:
            now = self._clock.time()
            # In a transaction that the caller has begun the token alone decides: it may have held the write lock,
            # and so kept heartbeats and claims out, since before the lease expired. Nobody has claimed the job if
            # the token is still there.
            begun = theirs is not None and theirs.in_transaction
            current = {
                end.token
                for end in settlements
                if self._execute(
                    _SQL["settle"], theirs, **_settlement(end), now=now, token_only=begun
                ).rowcount
            }
        self._wakeups.wake_all()
        return current

    def heartbeat(self, leases: Sequence[tuple[str, str]]) -> Flow[dict[str, float]]:
        return (yield from self._call(self._heartbeat, leases))

    def _heartbeat(self, leases: Sequence[tuple[str, str]]) -> dict[str, float]:
        extended: dict[str, float] = {}
        with self._transaction("heartbeat"):
            now = self._clock.time()
            for job_id, token in leases:
                for (until,) in self._execute(_SQL["heartbeat"], id=job_id, token=token, now=now).fetchall():
                    extended[token] = until
        return extended

    def get(self, job_id: str) -> Flow[JobRow | None]:
        rows = yield from self._rows("get", id=job_id)
        return JobRow(*rows[0]) if rows else None

    def select(
        self, state: JobState | None, queue: str | None, limit: int, offset: int
    ) -> Flow[list[JobRow]]:
        rows = yield from self._rows("select", state=state, queue=queue, limit=limit, offset=offset)
        return [JobRow(*row) for row in rows]

    def stats(self, queue: str | None) -> Flow[list[QueueStats]]:
        rows = yield from self._rows("stats", queue=queue, now=self._clock.time())
        return [QueueStats(*row) for row in rows]

    def _rows(self, name: str, **values: Any) -> Flow[list[Any]]:
        def read() -> list[Any]:
            with self._lock:
                return self._execute(_SQL[name], **values).fetchall()

        return (yield from self._call(read))

    def retry(self, job_id: str) -> Flow[bool]:
        done = yield from self._change("retry", id=job_id)
        self._wakeups.wake_all()
        return done == 1

    def discard(self, job_id: str) -> Flow[bool]:
        return (yield from self._change("discard", id=job_id)) == 1

    def prune(self, older_than: float) -> Flow[int]:
        return (yield from self._change("prune", older_than=older_than, now=self._clock.time()))

    def _change(self, name: str, **values: Any) -> Flow[int]:
        def change() -> int:
            with self._transaction(name):
                return self._execute(_SQL[name], **values).rowcount

        return (yield from self._call(change))

    def wait_for_work(self, queues: Sequence[str], seconds: float, stop: Signal) -> Flow[None]:
        """SQLite tells nobody; its data_version, which another process's commit changes, is cheap to look at."""
        with self._wakeups.waiting() as woken:
            # First the version, then a look: what is written after the look changes the version.
            version = yield from self._call(self._data_version)
            due = yield from self._rows("next_due", queues=json.dumps(list(queues)))
            if due[0][0] is not None:
                seconds = min(seconds, max(due[0][0] - self._clock.time(), 0.0))
            end = self._clock.monotonic() + seconds
            while (left := end - self._clock.monotonic()) > 0:
                if (yield Sleep(min(left, _LOOK_SECONDS), woken, stop)):
                    return
                if (yield from self._call(self._data_version)) != version:
                    return

    def _data_version(self) -> int:
        """A number that changes when somebody else commits."""
        with self._lock:
            version: int = self._execute("PRAGMA data_version").fetchone()[0]
            return version

    def begin(self) -> Flow[Any]:
        return (yield from self._call_on(self._begins, self._begin))

    def _begin(self) -> sqlite3.Connection:
        with self._translated("begin"):
            return self._connected("BEGIN IMMEDIATE")

    def commit(self, connection: Any) -> Flow[None]:
        yield from self._call_on(self._ends, self._end, connection, "COMMIT")

    def roll_back(self, connection: Any) -> Flow[None]:
        yield from self._call_on(self._ends, self._end, connection, "ROLLBACK")

    def _end(self, connection: sqlite3.Connection, how: str) -> None:
        try:
            with self._translated(how.lower()):
                if connection.in_transaction:
                    connection.execute(how)
        finally:
            connection.close()

    def awaiting(self) -> SqliteBackend:
        return SqliteBackend(self.path, self._clock, synchronous=self._synchronous, awaits=True)

    def close(self) -> Flow[None]:
        if self._closed:
            return
        yield from self._call(self._close)
        self._closed = True
        for thread in (self._thread, self._begins, self._ends):
            if thread is not None:
                thread.shutdown(wait=False)

    def _close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _open_connection(self) -> sqlite3.Connection:
        if os.getpid() != self._pid:
            raise JobError(
                f"the store on {self.path} was opened in process {self._pid} and inherited by its fork {os.getpid()}, "
                "where SQLite must not use it: open a new one after the fork"
            )
        if self._connection is None:
            raise self._is_closed()
        return self._connection

    def _is_closed(self) -> JobError:
        return JobError(f"the store on {self.path} is closed")

    def _execute(self, sql: str, connection: Any = None, **values: Any) -> sqlite3.Cursor:
        with self._translated("execute"):
            cursor: sqlite3.Cursor = (connection or self._open_connection()).cursor()
            cursor.row_factory = None  # the caller's connection may make other rows
            return cursor.execute(sql, values)

    @contextmanager
    def _transaction(self, what: str, connection: Any = None):  # type: ignore[no-untyped-def]
        """One atomic step of our own, or a part of the caller's transaction, which the caller commits."""
        if connection is not None:
            theirs = driver_connection(connection)
            if not isinstance(theirs, sqlite3.Connection):
                raise JobConfigError(
                    f"connection= takes a sqlite3 or SQLAlchemy connection, not {type(connection).__name__}"
                )
            if commits_by_itself(theirs):
                raise JobConfigError(
                    "connection= needs a transaction, and this sqlite3 connection commits every statement by "
                    'itself: execute("BEGIN IMMEDIATE") first'
                )
            yield theirs
            return
        with self._lock:
            self._execute("BEGIN IMMEDIATE")
            try:
                yield None
                self._execute("COMMIT")
            except BaseException:
                if self._connection is not None and self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    @contextmanager
    def _translated(self, what: str):  # type: ignore[no-untyped-def]
        try:
            yield
        except sqlite3.OperationalError as error:
            raise StoreUnavailableError(f"{what} on {self.path}: {error}. Nothing was changed") from error
        except sqlite3.DatabaseError as error:
            raise StoreUnavailableError(f"{what} on {self.path}: {error}") from error


def _settlement(end: Settlement) -> dict[str, Any]:
    return {
        "id": end.job_id,
        "token": end.token,
        "state": end.state.value,
        "outcome": end.outcome,
        "retry": int(end.retry),
        "delay": end.delay,
        "error": end.error,
        "error_type": end.error_type,
        "category": end.category,
    }
