"""The steps of the SQLite store: each is one BEGIN IMMEDIATE … COMMIT on the calling thread, or part of the caller's
transaction."""

from __future__ import annotations

import json
import math
import os
import secrets
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from typing import Any

from conquiet.clock import Clock, on_grid
from conquiet.jobs.backends import schema
from conquiet.jobs.backends.protocol import Claim, Inserted, JobRow, NewRow, Settlement
from conquiet.jobs.backends.rows import (
    EXPIRED_ERROR,
    GIVEN,
    duplicate_error,
    duplicates,
    leased_row,
    ready_place,
)
from conquiet.jobs.backends.sql_files import load, migrations
from conquiet.jobs.backends.sqlite.connection import SqliteConnection
from conquiet.jobs.backends.wakeups import Wakeups
from conquiet.jobs.model import JobState
from conquiet.sqlite_files import read_only

__all__ = ["SqliteSteps"]

# Read as bytes, which the JSON decoder takes directly.
_CASTS = {"payload": "CAST(payload AS BLOB)"}
_COLUMNS = ", ".join(_CASTS.get(name, name) for name in JobRow._fields)
_LEASED = ", ".join(_CASTS.get(name, name) for name in JobRow._fields if name not in GIVEN)
_SQL = load("sqlite", columns=_COLUMNS, leased=_LEASED)
_MIGRATIONS = migrations("sqlite")
# For listings: a row with a text that is not UTF-8 must not hide the others.
_LENIENT = partial(str, encoding="utf-8", errors="replace")


class SqliteSteps(SqliteConnection):
    def __init__(self, path: str, clock: Clock, synchronous: str) -> None:
        super().__init__(path, synchronous)
        self._clock = clock
        self._wakeups = Wakeups()

    def _now(self) -> float:
        return on_grid(self._clock.time())

    def _open(self, migrate: str) -> None:
        self._connect()
        try:
            # Checked without the write lock, which another transaction may hold for a long time.
            if schema.check_version(self._version(), _MIGRATIONS[-1].version, self.path, migrate):
                with self._transaction("open"):
                    self._step_to(None)
        except BaseException:  # a store that failed to open must not keep the file open
            self._close()
            raise

    def _version(self, connection: sqlite3.Connection | None = None) -> int | None:
        table = "SELECT 1 FROM sqlite_master WHERE name = 'conquiet_schema'"
        with self._translated("look at the schema"):
            if not self._execute(table, connection).fetchone():
                return None
            rows = self._execute("SELECT * FROM conquiet_schema", connection).fetchmany(2)
        return schema.stored_version(rows, self.path) or None

    def _migrate(self, target: int | None) -> list[str]:
        if self._connection is None and not self._closed:
            self._connect()
        with self._transaction("migrate"):
            return self._step_to(target)

    def _plan(self, target: int | None) -> list[tuple[str, str]]:
        found = None
        if os.path.exists(self.path):
            with self._translated("open"), closing(read_only(self.path)) as connection:
                found = self._version(connection)
        return [(name, sql) for name, sql, _ in schema.steps(_MIGRATIONS, found or 0, target)]

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

    def _insert(self, queue: str, rows: Sequence[NewRow], skip: bool, connection: Any) -> Inserted:
        try:
            with self._transaction("enqueue", connection) as theirs:
                now = self._now()  # here and below: after taking the lock, for which it may have waited
                if skip or theirs is not None:
                    rows = self._fresh(rows, skip, theirs)
                with self._translated("enqueue"):
                    (theirs or self._open_connection()).executemany(
                        _SQL["insert"], [_values(queue, row, now) for row in rows]
                    )
        except sqlite3.IntegrityError as error:
            with self._lock:
                taken = self._taken(rows, None)
            # All ids, if the conflicting rows have been removed meanwhile.
            double = duplicates((row.id for row in rows), taken) or [row.id for row in rows]
            raise duplicate_error(double) from error
        self._wakeups.wake_all()
        return Inserted(now, [row.id for row in rows])

    def _fresh(self, rows: Sequence[NewRow], skip: bool, theirs: Any) -> Sequence[NewRow]:
        """Return the rows whose ids are free. This is checked before the insert, because in a caller's transaction
        nothing may be left half done."""
        if (
            theirs is not None
        ):  # take the write lock, so that no other process adds one of these ids after the check
            self._execute("DELETE FROM conquiet_jobs WHERE 0", theirs)
        taken = self._taken(rows, theirs)
        double = duplicates((row.id for row in rows), taken)
        if double and not skip:
            raise duplicate_error(double)
        first: dict[str, NewRow] = {}
        for row in rows:
            if row.id not in taken:
                first.setdefault(row.id, row)
        return list(first.values())

    def _taken(self, rows: Sequence[NewRow], theirs: Any) -> set[str]:
        ids = json.dumps([row.id for row in rows])
        with self._translated("look for ids"):
            return {found for (found,) in self._execute(_SQL["existing"], theirs, ids=ids)}

    def _claim(self, claim: Claim) -> tuple[list[JobRow], bool]:
        token = f"{secrets.token_hex(16)}-"  # completed by the job's number: drawn once for all jobs
        values = {**claim._asdict(), "queues": json.dumps(claim.queues), "token": token}
        with self._transaction("claim"):
            now = values["now"] = self._now()
            values["until"] = on_grid(now + claim.ttl)
            late = self._execute(_SQL["late"], **values).fetchone()[0]
            if late:
                self._execute(_SQL["promote"], **values)
            statement = _SQL["claim" if late else "claim_ready"]
            claimed = self._execute(statement, **values, expired_error=EXPIRED_ERROR).fetchall()
        try:
            claimed.sort(key=ready_place)  # the same position in both statements
        except TypeError:  # a damaged priority that is not a number sorts last, as in SQLite
            claimed.sort(key=lambda row: (row[4] if type(row[4]) is int else math.inf, row[0]))
        if not late:
            return [leased_row(row, claim, token) for row in claimed], False
        rows = [JobRow(*row[1:]) for row in claimed]
        leased = [row for row in rows if row.state == JobState.IN_FLIGHT]
        return leased, len(leased) < len(rows)

    def _settle(self, settlements: Sequence[Settlement], connection: Any) -> set[str]:
        with self._transaction("settle", connection) as theirs:
            now = self._now()
            if theirs is None and self._ack_all(settlements, now):
                current = {end.token for end in settlements}
            else:
                # In a transaction that the caller has begun, only the token is checked: that transaction may have held
                # the write lock, and so blocked heartbeats and claims, since before the lease expired. If the token is
                # still there, no other worker has claimed the job.
                begun = theirs is not None and theirs.in_transaction
                current = {
                    end.token
                    for end in settlements
                    if self._execute(
                        _SQL["settle"], theirs, **_settlement(end, now), token_only=begun
                    ).rowcount
                }
        self._wakeups.wake_all()
        return current

    def _ack_all(self, settlements: Sequence[Settlement], now: float) -> bool:
        """Acknowledge all in one statement, the usual case. Return False, with nothing changed, if one is not an ack or
        not current."""
        if any(end.state is not JobState.SUCCEEDED for end in settlements):
            return False
        connection = self._open_connection()
        with self._translated("ack"):
            connection.execute("SAVEPOINT acks")
            values = [(now, end.job_id, end.token, now) for end in settlements]
            done = connection.executemany(_SQL["ack"], values).rowcount == len(settlements)
            if not done:
                connection.execute("ROLLBACK TO acks")
            connection.execute("RELEASE acks")
        return done

    def _heartbeat(self, leases: Sequence[tuple[str, str]]) -> dict[str, float]:
        extended: dict[str, float] = {}
        with self._transaction("heartbeat"):
            now = self._now()
            for job_id, token in leases:
                for (until,) in self._execute(_SQL["heartbeat"], id=job_id, token=token, now=now).fetchall():
                    extended[token] = until
        return extended

    def _data_version(self) -> int:
        """Return a number that changes when another connection commits."""
        with self._lock, self._translated("look for changes"):
            version: int = self._execute("PRAGMA data_version").fetchone()[0]
            return version

    def _read(self, name: str, **values: Any) -> list[Any]:
        with self._lock, self._translated(name):
            connection = self._open_connection()
            connection.text_factory = _LENIENT
            try:
                return self._execute(_SQL[name], **values).fetchall()
            finally:
                connection.text_factory = str

    def _write(self, name: str, **values: Any) -> int:
        with self._transaction(name):
            return self._execute(_SQL[name], **values).rowcount

    def _begin(self) -> sqlite3.Connection:
        with self._translated("begin"):
            return self._connected("BEGIN IMMEDIATE")

    def _end(self, connection: sqlite3.Connection, how: str) -> None:
        try:
            with self._translated(how.lower()):
                if connection.in_transaction:
                    connection.execute(how)
        finally:
            connection.close()


def _values(queue: str, row: NewRow, now: float) -> tuple[Any, ...]:
    job_id, payload, priority, delay, max_retries, correlation_id = row
    retry_at = on_grid(now + delay) if delay else None
    return job_id, queue, payload, priority, max_retries, 1 if delay else 0, retry_at, now, correlation_id


def _settlement(end: Settlement, now: float) -> dict[str, Any]:
    return {
        "now": now,
        "id": end.job_id,
        "token": end.token,
        "state": end.state.value,
        "outcome": end.outcome,
        "retry": int(end.retry),
        "retry_at": None if end.delay is None else on_grid(now + end.delay),
        "error": end.error,
        "error_type": end.error_type,
        "category": end.category,
    }
