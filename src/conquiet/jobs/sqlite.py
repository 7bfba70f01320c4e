"""The SQLite store: one file, durable, several processes; the default where there is no server."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from conquiet.clock import Clock
from conquiet.errors import DuplicateJobError, JobConfigError, StoreUnavailableError
from conquiet.flow import Call, Flow, Signal, Sleep
from conquiet.jobs import schema
from conquiet.jobs.backend import Claim, JobRow, NewRow, Settlement
from conquiet.jobs.connections import driver_connection
from conquiet.jobs.model import JobState, QueueStats, StoreCapabilities
from conquiet.jobs.queries import EXPIRED_ERROR, load, migrations

__all__ = ["SqliteBackend"]

T = TypeVar("T")

_COLUMNS = ", ".join(JobRow._fields)
_SQL = load("sqlite", columns=_COLUMNS)
_MIGRATIONS = migrations("sqlite")
_LOOK_SECONDS = 0.025  # how often an idle worker looks whether another process has written


class SqliteBackend:
    """One connection, used by one call at a time; each call is one BEGIN IMMEDIATE … COMMIT.

    WAL, so that readers and the writer do not wait for each other; `synchronous` FULL, so that what was
    committed survives a power cut.
    """

    capabilities = StoreCapabilities("sqlite", durable=True, own_clock=False, joins_transactions=True)

    def __init__(self, path: str, clock: Clock, *, synchronous: str, awaits: bool) -> None:
        self.path = path
        self._clock = clock
        self._synchronous = synchronous
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._work = Signal()
        # asyncio must not wait for a disk: there, calls run on one thread of this store's own.
        self._thread = ThreadPoolExecutor(1, "conquiet sqlite") if awaits else None

    def _call(self, operation: Callable[..., T], *args: Any) -> Flow[T]:
        value: T
        if self._thread is None:
            value = yield Call(operation, *args)
            return value
        loop = asyncio.get_running_loop()
        # Shielded: the thread cannot be interrupted, so what it did must be heard.
        value = yield Call(loop.run_in_executor, self._thread, partial(operation, *args), shield=True)
        return value

    def open(self, migrate: str) -> Flow[None]:
        yield from self._call(self._open, migrate)

    def _open(self, migrate: str) -> None:
        with self._translated("open"):
            self._connection = self._connected()
        with self._transaction("open"):
            if schema.check_version(self._version(), _MIGRATIONS[-1].version, self.path, migrate):
                self._step_to(None)

    def _connected(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False, timeout=10.0)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"PRAGMA synchronous = {self._synchronous}")
        return connection

    def _version(self) -> int | None:
        found = self._execute("SELECT 1 FROM sqlite_master WHERE name = 'conquiet_schema'").fetchone()
        return self._execute("SELECT version FROM conquiet_schema").fetchone()[0] or None if found else None

    def migrate(self, target: int | None) -> Flow[list[str]]:
        return (yield from self._call(self._migrate, target))

    def _migrate(self, target: int | None) -> list[str]:
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
        return (yield from self._call(self._insert, queue, rows, skip, connection))

    def _insert(self, queue: str, rows: Sequence[NewRow], skip: bool, connection: Any) -> dict[str, float]:
        now = self._clock.time()
        with self._transaction("enqueue", connection) as theirs:
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
        self._work.set()
        return dict.fromkeys(fresh, now)

    def claim(self, claim: Claim) -> Flow[tuple[list[JobRow], bool]]:
        return (yield from self._call(self._claim, claim))

    def _claim(self, claim: Claim) -> tuple[list[JobRow], bool]:
        self._work.clear()
        values = {**claim._asdict(), "queues": json.dumps(claim.queues), "now": self._clock.time()}
        with self._transaction("claim"):
            self._execute(_SQL["promote"], **values)
            claimed = self._execute(_SQL["claim"], **values, expired_error=EXPIRED_ERROR).fetchall()
        claimed.sort(key=lambda row: (row[4], row[0]))  # RETURNING keeps no order: priority, then seq
        rows = [JobRow(*row[1:]) for row in claimed]
        leased = [row for row in rows if row.state == JobState.IN_FLIGHT]
        return leased, len(leased) < len(rows)

    def settle(self, settlements: Sequence[Settlement], connection: Any) -> Flow[set[str]]:
        return (yield from self._call(self._settle, settlements, connection))

    def _settle(self, settlements: Sequence[Settlement], connection: Any) -> set[str]:
        now = self._clock.time()
        with self._transaction("settle", connection) as theirs:
            # In the caller's own transaction the token alone decides: it may have held the write lock, and so
            # kept heartbeats and claims out, since before the lease expired. Nobody has claimed the job if the
            # token is still there.
            current = {
                end.token
                for end in settlements
                if self._execute(
                    _SQL["settle"], theirs, **_settlement(end), now=now, token_only=theirs is not None
                ).rowcount
            }
        self._work.set()
        return current

    def heartbeat(self, leases: Sequence[tuple[str, str]]) -> Flow[dict[str, float]]:
        return (yield from self._call(self._heartbeat, leases))

    def _heartbeat(self, leases: Sequence[tuple[str, str]]) -> dict[str, float]:
        now = self._clock.time()
        extended: dict[str, float] = {}
        with self._transaction("heartbeat"):
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
        self._work.set()
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
        due = yield from self._rows("next_due", queues=json.dumps(list(queues)))
        if due[0][0] is not None:
            seconds = min(seconds, max(due[0][0] - self._clock.time(), 0.0))
        end = self._clock.monotonic() + seconds
        version = yield from self._call(self._data_version)
        while (left := end - self._clock.monotonic()) > 0:
            if (yield Sleep(min(left, _LOOK_SECONDS), self._work, stop)):
                return
            if (yield from self._call(self._data_version)) != version:
                return

    def _data_version(self) -> int:
        with self._lock:
            return self._execute("PRAGMA data_version").fetchone()[0]  # type: ignore[no-any-return]

    def begin(self) -> Flow[Any]:
        return (yield from self._call(self._begin))

    def _begin(self) -> sqlite3.Connection:
        with self._translated("begin"):
            connection = self._connected()
            connection.execute("BEGIN IMMEDIATE")
            return connection

    def commit(self, connection: Any) -> Flow[None]:
        yield from self._call(self._end, connection, "COMMIT")

    def roll_back(self, connection: Any) -> Flow[None]:
        yield from self._call(self._end, connection, "ROLLBACK")

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
        yield from self._call(self._close)
        if self._thread is not None:
            self._thread.shutdown(wait=False)

    def _close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _open_connection(self) -> sqlite3.Connection:
        if self._connection is None:
            raise StoreUnavailableError(f"the store on {self.path} is closed")
        return self._connection

    def _execute(self, sql: str, connection: Any = None, **values: Any) -> sqlite3.Cursor:
        with self._translated("execute"):
            return (connection or self._open_connection()).execute(sql, values)

    @contextmanager
    def _transaction(self, what: str, connection: Any = None):  # type: ignore[no-untyped-def]
        """One atomic step of our own, or a part of the caller's transaction, which the caller commits."""
        if connection is not None:
            theirs = driver_connection(connection)
            if not isinstance(theirs, sqlite3.Connection):
                raise JobConfigError(
                    f"connection= takes a sqlite3 or SQLAlchemy connection, not {type(connection).__name__}"
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
