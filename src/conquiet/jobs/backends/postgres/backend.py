"""The PostgreSQL store: one statement per operation, the server's own clock."""

from __future__ import annotations

import logging
import math
import secrets
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import psycopg
from psycopg import errors as pg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from conquiet.errors import JobConfigError, PayloadError, StoreUnavailableError
from conquiet.flow import Call, Flow, Signal
from conquiet.jobs.backends import schema
from conquiet.jobs.backends.caller_connection import driver_connection
from conquiet.jobs.backends.postgres.connections import ENQUEUE, PostgresConnections
from conquiet.jobs.backends.postgres.values import (
    COLUMNS,
    LEASED,
    end_values,
    in_ascii,
    lease_values,
    number_array,
    place,
    text_array,
)
from conquiet.jobs.backends.protocol import Claim, Inserted, JobRow, NewRow, Settlement
from conquiet.jobs.backends.rows import EXPIRED_ERROR, duplicate_error, duplicates, leased_row, ready_place
from conquiet.jobs.backends.sql_files import load, migrations
from conquiet.jobs.model import JobState, QueueStats, StoreCapabilities

__all__ = ["PostgresBackend"]

_SQL = load("postgres", columns=COLUMNS, leased=LEASED)
for _name in ("insert", "insert_new"):
    _SQL[_name] = _SQL[_name].replace("{insert}", _SQL["insert_part"])
_MIGRATIONS = migrations("postgres")
# Insert version 0 into a new table, but not into one that was emptied.
_NEW_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS conquiet_schema (version int NOT NULL)",
    "INSERT INTO conquiet_schema SELECT 0 WHERE NOT EXISTS (SELECT FROM conquiet_schema) "
    "AND to_regclass('conquiet_jobs') IS NULL",
)
_LOCKED_SECONDS = 0.05
_log = logging.getLogger("conquiet.jobs")


class PostgresBackend(PostgresConnections):
    """Uses a few autocommit connections, each taken for one statement, and others that listen while a worker waits."""

    capabilities = StoreCapabilities("postgresql", durable=True, own_clock=True, joins_transactions=True)

    def open(self, migrate: str) -> Flow[None]:
        try:
            found = yield from self._version()
            if schema.check_version(found, _MIGRATIONS[-1].version, self._where, migrate):
                yield from self.migrate(None)
        except BaseException:  # cancellation included: nothing else would close the connections
            yield from self._drop_connections()
            raise

    def _version(self) -> Flow[int | None]:
        rows = yield from self._rows("SELECT to_regclass('conquiet_schema') IS NOT NULL", {})
        if not rows[0][0]:
            return None
        rows = yield from self._rows("SELECT * FROM conquiet_schema LIMIT 2", {})
        return schema.stored_version(rows, self._where) or None

    def migrate(self, target: int | None) -> Flow[list[str]]:
        connection = yield from self._take()
        done: list[str] = []
        try:
            with self._translated("migrate", connection):
                yield Call(connection.execute, "BEGIN")
                # Two processes that start at the same time must not both create the tables.
                yield Call(connection.execute, "SELECT pg_advisory_xact_lock(7305811)")
                for statement in _NEW_SCHEMA:
                    yield Call(connection.execute, statement)
                cursor = yield Call(connection.execute, "SELECT * FROM conquiet_schema LIMIT 2")
                found = schema.stored_version((yield Call(cursor.fetchall)), self._where)
                for name, sql, version in schema.steps(_MIGRATIONS, found, target):
                    yield Call(connection.execute, sql)
                    yield Call(connection.execute, "DELETE FROM conquiet_schema")
                    yield Call(connection.execute, "INSERT INTO conquiet_schema VALUES (%s)", (version,))
                    done.append(name)
                yield Call(connection.execute, "COMMIT")
        except BaseException:  # cancellation included: closing the connection rolls back
            yield Call(connection.close, shield=True)
            raise
        yield from self._give_back(connection)
        return done

    def plan(self, target: int | None) -> Flow[list[tuple[str, str]]]:
        found = yield from self._version()
        return [(name, sql) for name, sql, _ in schema.steps(_MIGRATIONS, found or 0, target)]

    def insert(self, queue: str, rows: Sequence[NewRow], skip: bool, connection: Any) -> Flow[Inserted]:
        ids, payloads, priorities, delays, max_retries, correlation_ids = zip(*rows, strict=True)
        values = {
            "queue": queue,
            "ids": text_array(ids),
            "payloads": text_array(payloads),
            "priorities": number_array(priorities),
            "delays": number_array(delays) if any(delays) else None,
            "max_retries": number_array(max_retries),
            "correlation_ids": list(correlation_ids) if any(correlation_ids) else None,
        }
        try:
            found = yield from self._rows(
                _SQL["insert_new" if skip else "insert"],
                values,
                ENQUEUE,
                theirs=connection,
                savepoint=not skip,
            )
        except pg.UniqueViolation as error:
            taken = yield from self._rows(_SQL["existing"], {"ids": text_array(ids)}, theirs=connection)
            # All ids, if the conflicting rows have been removed meanwhile.
            raise duplicate_error(duplicates(ids, {row[0] for row in taken}) or ids) from error
        return Inserted(found[0][0], {row[1] for row in found} if skip else ids)

    def claim(self, claim: Claim) -> Flow[tuple[list[JobRow], bool]]:
        # A token is a random prefix, drawn once per claim, and the job's number.
        token = f"{secrets.token_hex(16)}-"
        values = {**claim._asdict(), "queues": list(claim.queues), "token": token}
        ready = yield from self._rows(_SQL["claim_ready"], values, "claim")
        if ready:
            ready.sort(key=ready_place)
            return [leased_row(row, claim, token) for row in ready], False
        return (yield from self._claim_any(claim, {**values, "expired_error": EXPIRED_ERROR}))

    def _claim_any(self, claim: Claim, values: dict[str, Any]) -> Flow[tuple[list[JobRow], bool]]:
        claimed = yield from self._rows(_SQL["claim"], values, "claim")
        claimed.sort(key=place)
        rows = [JobRow(*row[2:]) for row in claimed]
        if len(rows) == claim.limit and any(row[1] for row in claimed):
            # Probably more delayed jobs are due than fit into a claim: make them ordinary Ready jobs.
            try:
                yield from self._count(_SQL["promote"], {"queues": list(claim.queues)}, "promote")
            except StoreUnavailableError as error:
                _log.debug("delayed jobs were not promoted, the next claim will try again: %s", error)
        leased = [row for row in rows if row.state == JobState.IN_FLIGHT]
        return leased, len(leased) < len(rows)

    def set_aside(self, job_id: Any, token: str, reason: str) -> Flow[None]:
        values = {"id": job_id, "token": token, "reason": reason}
        yield from self._count(_SQL["set_aside"], values, "set aside")

    def set_aside_next(self, queues: Sequence[str], reason: str) -> Flow[bool]:
        values = {"queues": list(queues), "reason": reason}
        return bool((yield from self._count(_SQL["set_aside_next"], values, "set aside")))

    def settle(self, settlements: Sequence[Settlement], connection: Any) -> Flow[set[str]]:
        acks = [end for end in settlements if end.state is JobState.SUCCEEDED]
        others = [end for end in settlements if end.state is not JobState.SUCCEEDED]
        current: set[str] = set()
        for name, ends in (("ack", acks), ("settle", others)):
            if ends:
                rows = yield from self._settle(name, ends, connection)
                current.update(ends[place - 1].token for (place,) in rows)
        return current

    def _settle(self, name: str, ends: Sequence[Settlement], connection: Any) -> Flow[list[Any]]:
        values = lease_values([(end.job_id, end.token) for end in ends])
        if name == "ack":
            return (yield from self._rows(_SQL[name], values, name, theirs=connection))
        values |= end_values(ends)
        try:
            return (yield from self._rows(_SQL[name], values, name, theirs=connection))
        except JobConfigError as error:
            # The encoding of the database lacks a character of the error text: that must not keep the job from failing.
            if not isinstance(error.__cause__, pg.UntranslatableCharacter) or connection is not None:
                raise
        return (yield from self._rows(_SQL[name], values | end_values(map(in_ascii, ends)), name))

    def heartbeat(self, leases: Sequence[tuple[str, str]]) -> Flow[dict[str, float]]:
        rows = yield from self._rows(_SQL["heartbeat"], lease_values(leases), "heartbeat")
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
        return (yield from self._count(_SQL["discard"], {"id": job_id}, "discard")) == 1

    def prune(self, older_than: float) -> Flow[int]:
        return (yield from self._count(_SQL["prune"], {"older_than": older_than}, "prune"))

    def next_due(self, queues: Sequence[str]) -> Flow[float | None]:
        ((due,),) = yield from self._rows(_SQL["next_due"], {"queues": list(queues)})
        if due is None or due == math.inf:  # an infinite time, written by someone else, is never due
            return None
        return float(max(due, 0.0))

    def wait_for_work(self, queues: Sequence[str], seconds: float, stop: Signal) -> Flow[None]:
        self._forget_parents_connections()
        listener = self._listeners.pop() if self._listeners else (yield from self._listen())
        try:
            # It is listening, so no later job is missed; next_due finds the earlier ones.
            due = yield from self.next_due(queues)
            if due is not None:
                # A job that is due and was not claimed is locked: look again soon, but not immediately.
                seconds = min(seconds, max(due, _LOCKED_SECONDS))
            with self._translated("listen", listener.connection):
                yield listener.wait(seconds, stop)
        except BaseException:  # cancellation included: a half-read answer must not reach the next caller
            yield Call(listener.close, shield=True)
            raise
        if self._closed:
            yield Call(listener.close, shield=True)
        else:
            self._listeners.append(listener)

    def begin(self) -> Flow[Any]:
        connection = yield from self._take()
        with self._translated("begin", connection):
            yield from self._first_step(connection, Call(connection.set_autocommit, False))
        return connection

    def commit(self, connection: Any) -> Flow[None]:
        with self._translated("commit", connection, unknown=True):
            yield from self._last_step(connection, connection.commit)
        yield from self._give_back(connection)

    def roll_back(self, connection: Any) -> Flow[None]:
        if not connection.closed:
            with self._translated("roll back", connection):
                yield from self._last_step(connection, connection.rollback)
            yield from self._give_back(connection)

    def _last_step(self, connection: Any, end: Callable[[], Any]) -> Flow[None]:
        try:
            yield Call(end)
            yield Call(connection.set_autocommit, True)
        except OSError:  # a local error: the state of the exchange with the server is unknown
            yield Call(connection.close, shield=True)
            raise

    def awaiting(self) -> PostgresBackend:
        return PostgresBackend(self.dsn, awaits=True)

    def _rows(
        self, sql: str, values: dict[str, Any], change: str = "", theirs: Any = None, savepoint: bool = False
    ) -> Flow[list[Any]]:
        """Return the rows of one statement: committed on a connection of ours, or in the caller's transaction.

        `change` names what the statement changes. It is "" for a read, whose outcome is never unknown.
        """
        if theirs is not None:
            return (yield from self._rows_in(_psycopg(theirs), sql, values, change, savepoint))
        cursor = yield from self._execute(sql, values, change)
        rows: list[Any] = yield Call(cursor.fetchall)  # they have already been received
        return rows

    def _count(self, sql: str, values: dict[str, Any], change: str) -> Flow[int]:
        cursor = yield from self._execute(sql, values, change)
        count: int = cursor.rowcount
        return count

    def _execute(self, sql: str, values: dict[str, Any], change: str) -> Flow[Any]:
        connection = yield from self._take()
        try:
            with self._translated(change or "read", connection, unknown=bool(change)):
                cursor = yield Call(partial(connection.execute, sql, values, binary=True))
        except (StoreUnavailableError, PayloadError, JobConfigError, pg.UniqueViolation) as error:
            if isinstance(error.__cause__, OSError):  # the state of the exchange with the server is unknown
                yield Call(connection.close, shield=True)
            if connection.closed:  # the server went away, so the idle connections are probably closed, too
                yield from self._drop_connections()
            yield from self._give_back(connection)
            raise
        except BaseException:
            # Cancelled during the statement: its outcome and the state of the connection are unknown.
            yield Call(connection.close, shield=True)
            raise
        yield from self._give_back(connection)
        return cursor

    def _rows_in(
        self, connection: Any, sql: str, values: dict[str, Any], change: str, savepoint: bool
    ) -> Flow[list[Any]]:
        """Run it in the caller's transaction. With `savepoint` a refused row does not abort that transaction."""
        with self._translated(change or "read", connection, theirs=True):
            if savepoint:
                yield Call(connection.execute, "SAVEPOINT conquiet")
            try:
                cursor = connection.cursor(
                    row_factory=tuple_row
                )  # the caller's connection may have another row factory
                yield Call(cursor.execute, sql, values)
                rows: list[Any] = yield Call(cursor.fetchall)
            except (psycopg.Error, UnicodeError):
                if savepoint and not connection.closed:
                    yield Call(connection.execute, "ROLLBACK TO SAVEPOINT conquiet")
                raise
            if savepoint:
                yield Call(connection.execute, "RELEASE SAVEPOINT conquiet")
            return rows


def _psycopg(connection: Any) -> Any:
    theirs = driver_connection(connection)
    if not isinstance(theirs, psycopg.Connection | psycopg.AsyncConnection):
        raise JobConfigError(
            f"connection= takes a psycopg or SQLAlchemy connection, not {type(connection).__name__}"
        )
    if theirs.autocommit and theirs.info.transaction_status == TransactionStatus.IDLE:
        raise JobConfigError(
            "connection= needs a transaction, but this psycopg connection commits every statement by itself: "
            "use it inside `with connection.transaction():`"
        )
    if theirs.info.encoding == "ascii":  # with a SQL_ASCII database psycopg returns bytes instead of text
        raise JobConfigError(
            "connection= needs an encoding, but this psycopg connection has none: execute(\"SET client_encoding TO 'UTF8'\")"
        )
    return theirs
