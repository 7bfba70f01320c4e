"""The PostgreSQL store: one statement per operation, the server's own clock."""

from __future__ import annotations

import asyncio
import os
import select
from collections.abc import Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import errors as pg

from conquiet.errors import (
    DuplicateJobError,
    JobConfigError,
    OutcomeUnknownError,
    StoreUnavailableError,
    redact,
)
from conquiet.flow import Call, Flow, Signal
from conquiet.jobs import schema
from conquiet.jobs.backend import Claim, JobRow, NewRow, Settlement
from conquiet.jobs.connections import driver_connection
from conquiet.jobs.model import JobState, QueueStats, StoreCapabilities
from conquiet.jobs.queries import EXPIRED_ERROR, load, migrations

__all__ = ["PostgresBackend"]

_TIMES = ("retry_at", "enqueued_at", "lease_expires_at", "lease_started_at", "finished_at")
_CASTS = {"lease_token": "lease_token::text", "attempts": "attempts::text"}
_CASTS |= {name: f"date_part('epoch', job.{name})" for name in _TIMES}
_COLUMNS = ", ".join(_CASTS.get(name, f"job.{name}") for name in JobRow._fields)
_SQL = load("postgres", columns=_COLUMNS)
_INSERT = {
    skip: _SQL["insert"].replace("{on_conflict}", skip and "ON CONFLICT DO NOTHING") for skip in ("", "skip")
}
_MIGRATIONS = migrations("postgres")
_CHANNEL = "conquiet_jobs"


class PostgresBackend:
    """A few connections in autocommit, taken for a statement each; one more that listens, once somebody waits."""

    capabilities = StoreCapabilities("postgresql", durable=True, own_clock=True, joins_transactions=True)

    def __init__(self, dsn: str, *, awaits: bool) -> None:
        self.dsn = dsn
        self._awaits = awaits
        self._where = redact(dsn)
        self._idle: list[Any] = []
        self._listener: Any = None
        self._closed = False

    def open(self, migrate: str) -> Flow[None]:
        found = yield from self._version()
        if schema.check_version(found, _MIGRATIONS[-1].version, self._where, migrate):
            yield from self.migrate(None)

    def _version(self) -> Flow[int | None]:
        rows = yield from self._rows("SELECT to_regclass('conquiet_schema') IS NOT NULL", {})
        if not rows[0][0]:
            return None
        rows = yield from self._rows("SELECT version FROM conquiet_schema", {})
        return rows[0][0] or None if rows else None

    def migrate(self, target: int | None) -> Flow[list[str]]:
        connection = yield from self._take()
        done: list[str] = []
        try:
            with self._translated("migrate", connection):
                yield Call(connection.execute, "BEGIN")
                # Two processes that start at once must not both create the tables.
                yield Call(connection.execute, "SELECT pg_advisory_xact_lock(7305811)")
                yield Call(
                    connection.execute, "CREATE TABLE IF NOT EXISTS conquiet_schema (version int NOT NULL)"
                )
                cursor = yield Call(connection.execute, "SELECT max(version) FROM conquiet_schema")
                found = (yield Call(cursor.fetchone))[0] or 0
                for name, sql, version in schema.steps(_MIGRATIONS, found, target):
                    yield Call(connection.execute, sql)
                    yield Call(connection.execute, "DELETE FROM conquiet_schema")
                    yield Call(connection.execute, "INSERT INTO conquiet_schema VALUES (%s)", (version,))
                    done.append(name)
                yield Call(connection.execute, "COMMIT")
        except BaseException:
            yield Call(connection.close, shield=True)
            raise
        yield from self._give_back(connection)
        return done

    def insert(
        self, queue: str, rows: Sequence[NewRow], skip: bool, connection: Any
    ) -> Flow[dict[str, float]]:
        ids, payloads, priorities, delays, max_retries, correlation_ids = map(list, zip(*rows, strict=True))
        values = {
            "queue": queue,
            "ids": ids,
            "payloads": payloads,
            "priorities": priorities,
            "delays": delays,
            "max_retries": max_retries,
            "correlation_ids": correlation_ids,
        }
        try:
            added = yield from self._rows(
                _INSERT["skip" if skip else ""], values, "enqueue", theirs=connection, savepoint=not skip
            )
        except pg.UniqueViolation as error:
            taken = yield from self._rows(_SQL["existing"], {"ids": ids}, theirs=connection)
            double = [row[0] for row in taken] or [next(i for i in ids if ids.count(i) > 1)]
            raise DuplicateJobError(
                f"a job with id {double[0]!r} exists (or is twice in this call); nothing was enqueued", double
            ) from error
        return dict(added)

    def claim(self, claim: Claim) -> Flow[tuple[list[JobRow], bool]]:
        values = {**claim._asdict(), "queues": list(claim.queues), "expired_error": EXPIRED_ERROR}
        claimed = yield from self._rows(_SQL["claim"], values, "claim")
        claimed.sort(key=lambda row: (row[5], row[0]))  # RETURNING keeps no order: priority, then seq
        rows = [JobRow(*row[2:]) for row in claimed]
        if len(rows) == claim.limit and any(row[1] for row in claimed):
            # Probably more delayed jobs are due than fit into a claim: let them join the others.
            yield from self._rows(_SQL["promote"], {"queues": list(claim.queues)})
        leased = [row for row in rows if row.state == JobState.IN_FLIGHT]
        return leased, len(leased) < len(rows)

    def settle(self, settlements: Sequence[Settlement], connection: Any) -> Flow[set[str]]:
        acks = [end for end in settlements if end.state is JobState.SUCCEEDED]
        others = [end for end in settlements if end.state is not JobState.SUCCEEDED]
        current: set[str] = set()
        if acks:
            values: dict[str, list[Any]] = {
                "ids": [end.job_id for end in acks],
                "tokens": [end.token for end in acks],
            }
            rows = yield from self._rows(_SQL["ack"], values, "ack", theirs=connection)
            current.update(row[0] for row in rows)
        if others:
            values = {
                "ids": [end.job_id for end in others],
                "tokens": [end.token for end in others],
                "states": [end.state.value for end in others],
                "outcomes": [end.outcome for end in others],
                "retries": [int(end.retry) for end in others],
                "delays": [end.delay for end in others],
                "errors": [end.error for end in others],
                "error_types": [end.error_type for end in others],
                "categories": [end.category for end in others],
            }
            rows = yield from self._rows(_SQL["settle"], values, "settle", theirs=connection)
            current.update(row[0] for row in rows)
        return current

    def heartbeat(self, leases: Sequence[tuple[str, str]]) -> Flow[dict[str, float]]:
        values = {"ids": [job_id for job_id, _ in leases], "tokens": [token for _, token in leases]}
        rows = yield from self._rows(_SQL["heartbeat"], values, "heartbeat")
        extended: dict[str, float] = {}
        for token, until in rows:
            extended[token] = max(until, extended.get(token, 0.0))
        return extended

    def get(self, job_id: str) -> Flow[JobRow | None]:
        rows = yield from self._rows(_SQL["get"], {"id": job_id})
        return JobRow(*rows[0]) if rows else None

    def select(
        self, state: JobState | None, queue: str | None, limit: int, offset: int
    ) -> Flow[list[JobRow]]:
        values = {"state": state and state.value, "queue": queue, "limit": limit, "offset": offset}
        rows = yield from self._rows(_SQL["select"], values)
        return [JobRow(*row) for row in rows]

    def stats(self, queue: str | None) -> Flow[list[QueueStats]]:
        rows = yield from self._rows(_SQL["stats"], {"queue": queue})
        return [QueueStats(*row) for row in rows]

    def retry(self, job_id: str) -> Flow[bool]:
        return bool((yield from self._rows(_SQL["retry"], {"id": job_id}, "retry")))

    def discard(self, job_id: str) -> Flow[bool]:
        return bool((yield from self._rows(_SQL["discard"] + " RETURNING 1", {"id": job_id}, "discard")))

    def prune(self, older_than: float) -> Flow[int]:
        return len(
            (yield from self._rows(_SQL["prune"] + " RETURNING 1", {"older_than": older_than}, "prune"))
        )

    def wait_for_work(self, queues: Sequence[str], seconds: float, stop: Signal) -> Flow[None]:
        if self._listener is None:
            # Listening comes first, then one more look by the caller: what arrived in between is not missed.
            listener = yield from self._connect()
            with self._translated("listen", listener):
                yield Call(listener.execute, f"LISTEN {_CHANNEL}")
            self._listener = listener
            return
        due = yield from self._rows(_SQL["next_due"], {"queues": list(queues)})
        if due[0][0] is not None:
            seconds = min(seconds, max(due[0][0], 0.0))
        wait = _wait_async if self._awaits else _wait
        try:
            with self._translated("listen", self._listener):
                yield Call(wait, self._listener, seconds, stop)
        except BaseException:
            listener, self._listener = self._listener, None
            yield Call(listener.close, shield=True)
            raise

    def begin(self) -> Flow[Any]:
        connection = yield from self._take()
        with self._translated("begin", connection):
            yield Call(connection.set_autocommit, False)
        return connection

    def commit(self, connection: Any) -> Flow[None]:
        with self._translated("commit", connection, unknown=True):
            yield Call(connection.commit)
            yield Call(connection.set_autocommit, True)
        yield from self._give_back(connection)

    def roll_back(self, connection: Any) -> Flow[None]:
        if not connection.closed:
            with self._translated("roll back", connection):
                yield Call(connection.rollback)
                yield Call(connection.set_autocommit, True)
            yield from self._give_back(connection)

    def awaiting(self) -> PostgresBackend:
        return PostgresBackend(self.dsn, awaits=True)

    def close(self) -> Flow[None]:
        self._closed = True
        connections = [*self._idle, *([self._listener] if self._listener is not None else [])]
        self._idle, self._listener = [], None
        for connection in connections:
            yield Call(connection.close, shield=True)

    def _rows(
        self, sql: str, values: dict[str, Any], change: str = "", theirs: Any = None, savepoint: bool = False
    ) -> Flow[list[Any]]:
        """The rows of one statement: on a connection of ours, committed, or inside the caller's transaction.

        `change` names what the statement changes, "" if nothing: then a lost connection leaves nothing unknown.
        """
        if theirs is not None:
            return (yield from self._rows_in(_psycopg(theirs), sql, values, savepoint))
        connection = yield from self._take()
        try:
            with self._translated(change or "read", connection, unknown=bool(change)):
                cursor = yield Call(connection.execute, sql, values)
                rows: list[Any] = (yield Call(cursor.fetchall)) if cursor.description else []
        except (StoreUnavailableError, pg.UniqueViolation):
            yield from self._give_back(connection)
            raise
        except BaseException:
            # Cancelled in the middle: the statement's fate and the connection's state are both open.
            yield Call(connection.close, shield=True)
            raise
        yield from self._give_back(connection)
        return rows

    def _rows_in(self, connection: Any, sql: str, values: dict[str, Any], savepoint: bool) -> Flow[list[Any]]:
        """In the caller's transaction; a refused row must not spoil what the caller did before."""
        if savepoint:
            yield Call(connection.execute, "SAVEPOINT conquiet")
        try:
            cursor = yield Call(connection.execute, sql, values)
            rows: list[Any] = (yield Call(cursor.fetchall)) if cursor.description else []
        except psycopg.Error:
            if savepoint:
                yield Call(connection.execute, "ROLLBACK TO SAVEPOINT conquiet")
            raise
        if savepoint:
            yield Call(connection.execute, "RELEASE SAVEPOINT conquiet")
        return rows

    def _connect(self) -> Flow[Any]:
        if self._closed:
            raise StoreUnavailableError(f"the store on {self._where} is closed")
        connect = psycopg.AsyncConnection.connect if self._awaits else psycopg.Connection.connect
        try:
            return (yield Call(lambda: connect(self.dsn, autocommit=True)))
        except psycopg.Error as error:
            raise StoreUnavailableError(
                f"{self._where} cannot be reached: {redact(str(error)).strip()}"
            ) from error

    def _take(self) -> Flow[Any]:
        while self._idle:
            connection = self._idle.pop()
            if not connection.closed:
                return connection
        return (yield from self._connect())

    def _give_back(self, connection: Any) -> Flow[None]:
        if self._closed:
            yield Call(connection.close, shield=True)
        elif not connection.closed:
            self._idle.append(connection)

    @contextmanager
    def _translated(self, what: str, connection: Any, unknown: bool = False):  # type: ignore[no-untyped-def]
        try:
            yield
        except pg.UniqueViolation:
            raise
        except psycopg.Error as error:
            reason = redact(str(error)).strip()
            if connection.closed and unknown:
                raise OutcomeUnknownError(
                    f"{what} on {self._where}: the connection broke before the answer came ({reason}). It may have "
                    "happened: read the job to find out"
                ) from error
            raise StoreUnavailableError(f"{what} on {self._where}: {reason}. Nothing was changed") from error


def _psycopg(connection: Any) -> Any:
    theirs = driver_connection(connection)
    if not isinstance(theirs, psycopg.Connection | psycopg.AsyncConnection):
        raise JobConfigError(
            f"connection= takes a psycopg or SQLAlchemy connection, not {type(connection).__name__}"
        )
    return theirs


def _wait(listener: psycopg.Connection, seconds: float, stop: Signal) -> None:
    """Until a notification, `stop`, or the time is up."""
    reader, writer = os.pipe()

    def wake() -> None:
        os.write(writer, b"x")

    stop.add_waker(wake)
    try:
        if not stop.is_set():
            select.select([listener.fileno(), reader], [], [], seconds)
        for _ in listener.notifies(timeout=0):
            pass
    finally:
        stop.remove_waker(wake)
        os.close(reader)
        os.close(writer)


async def _wait_async(listener: psycopg.AsyncConnection, seconds: float, stop: Signal) -> None:
    loop = asyncio.get_running_loop()
    woken = asyncio.Event()

    def wake() -> None:
        loop.call_soon_threadsafe(woken.set)

    stop.add_waker(wake)
    loop.add_reader(listener.fileno(), woken.set)
    try:
        if not stop.is_set():
            async with asyncio.timeout(seconds):
                await woken.wait()
    except TimeoutError:
        pass
    finally:
        stop.remove_waker(wake)
        loop.remove_reader(listener.fileno())
    async for _ in listener.notifies(timeout=0):
        pass
