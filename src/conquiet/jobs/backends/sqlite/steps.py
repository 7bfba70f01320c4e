"""The steps of the SQLite store: each is one BEGIN IMMEDIATE … COMMIT on the calling thread, or part of the caller's
transaction."""

from __future__ import annotations

import json
import os
import secrets
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from typing import Any

from conquiet.clock import Clock, on_grid
from conquiet.errors import AccessProblem, StoreClosedError, StoreUnavailableError
from conquiet.jobs.backends import schema
from conquiet.jobs.backends.protocol import Claim, Inserted, JobRow, Listing, NewRow, Settlement
from conquiet.jobs.backends.rows import (
    EXPIRED_ERROR,
    GIVEN,
    RANKED,
    due_at,
    duplicate_error,
    duplicates,
    leased_row,
)
from conquiet.jobs.backends.sql_files import load, migrations
from conquiet.jobs.backends.sqlite.connection import SqliteConnection
from conquiet.jobs.backends.sqlite.forks import close_before_forks
from conquiet.jobs.backends.sqlite.handler import HandlerConnection
from conquiet.jobs.backends.wakeups import Wakeups
from conquiet.jobs.model import JobState
from conquiet.jobs.turns import by_turns
from conquiet.sqlite_files import read_only

__all__ = ["SqliteSteps", "page_statement"]

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
        """Connect, and check or create the schema. A lock that somebody holds is not waited for: perhaps it is held by
        the caller, who is about to enqueue in its own transaction. The rest is then done when it is needed."""
        migrate, self._unchecked = self._unchecked or migrate, None
        try:
            self._connect(wait=0.0)
            with self._impatient():
                self._check_schema(migrate)
        except StoreUnavailableError as error:
            if error.problem is not AccessProblem.LOCKED:
                self._close()
                raise
            self._lost = self._connection is None
            self._unchecked = migrate
        except BaseException:  # a store that failed to open must not keep the file open
            self._close()
            raise

    @contextmanager
    def _impatient(self) -> Iterator[None]:
        ((usual,),) = self._execute("PRAGMA busy_timeout").fetchall()
        self._execute("PRAGMA busy_timeout = 0")
        try:
            yield
        finally:  # whoever finds the file locked goes on with this connection
            self._execute(f"PRAGMA busy_timeout = {usual:d}")

    def _check_schema(self, migrate: str, theirs: Any = None) -> None:
        # Checked without the write lock, which another transaction may hold for a long time.
        if not schema.check_version(self._version(theirs), _MIGRATIONS, self.path, migrate):
            return
        if theirs is not None:
            self._step_to(None, theirs)
            return
        with self._own_transaction("open"):
            self._step_to(None)

    def _version(self, connection: sqlite3.Connection | None = None) -> schema.Stored | None:
        table = "SELECT 1 FROM sqlite_master WHERE name = 'conquiet_schema'"
        with self._translated("look at the schema"):
            if not self._execute(table, connection).fetchone():
                return None
            rows = self._execute("SELECT * FROM conquiet_schema", connection).fetchmany(2)
        return schema.stored_version(rows, self.path)

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
        return [(step.name, step.sql) for step in schema.steps(_MIGRATIONS, found, target)]

    def _step_to(self, target: int | None, theirs: Any = None) -> list[str]:
        found = self._version(theirs)
        if found is None:
            self._execute("CREATE TABLE IF NOT EXISTS conquiet_schema (version INTEGER NOT NULL)", theirs)
            self._execute("DELETE FROM conquiet_schema", theirs)
            self._execute("INSERT INTO conquiet_schema (version) VALUES (0)", theirs)
        done = []
        for step in schema.steps(_MIGRATIONS, found, target):
            for statement in filter(str.strip, step.sql.split(";")):
                self._execute(statement, theirs)
            columns = {row[1] for row in self._execute("PRAGMA table_info(conquiet_schema)", theirs)}
            if "oldest" not in columns:
                self._execute(
                    "ALTER TABLE conquiet_schema ADD COLUMN oldest INTEGER NOT NULL DEFAULT 0", theirs
                )
            self._execute(
                "UPDATE conquiet_schema SET version = :version, oldest = :oldest",
                theirs,
                version=step.version,
                oldest=step.oldest,
            )
            done.append(step.name)
        return done

    def _insert(
        self, queue: str, rows: Sequence[NewRow], skip: bool, notify: bool, connection: Any
    ) -> Inserted:
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
        if notify:
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
            statement = _SQL["claim" if late else "claim_ready"]
            claimed = self._execute(
                statement, **values, expired_error=EXPIRED_ERROR, ranked=RANKED
            ).fetchall()
        claimed = by_turns(claimed, claim.queues, 2, 4)  # the same places in both statements
        if not late:
            return [leased_row(row, claim, token) for row in claimed], False
        rows = [JobRow(*row[1:]) for row in claimed]
        leased = [row for row in rows if row.state == JobState.IN_FLIGHT]
        return leased, len(leased) < len(rows)

    def _settle(
        self, settlements: Sequence[Settlement], begins: Sequence[tuple[str, str]], connection: Any
    ) -> set[str]:
        with self._transaction("settle", connection) as theirs:
            now = self._now()
            if theirs is None and settlements and self._ack_all(settlements, now):
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
            for job_id, token in begins:
                if self._open_connection().execute(_SQL["begin"], (job_id, token, now)).rowcount:
                    current.add(token)
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

    def _data_version(self) -> tuple[int, int]:
        """Return a value that changes when another connection commits, or when this one was replaced."""
        with self._lock, self._translated("look for changes"):
            version: int = self._execute("PRAGMA data_version").fetchone()[0]
            return self._opened, version

    def _read(self, name: str, **values: Any) -> list[Any]:
        return self._read_leniently(name, _SQL[name], **values)

    def _page(self, listing: Listing) -> list[Any]:
        return self._read_leniently("select", page_statement(listing), **listing._asdict(), now=self._now())

    def _read_leniently(self, name: str, sql: str, **values: Any) -> list[Any]:
        with self._lock, self._translated(name):
            connection = self._open_connection()
            connection.text_factory = _LENIENT
            try:
                return self._execute(sql, **values).fetchall()
            finally:
                connection.text_factory = str

    def _write(self, name: str, **values: Any) -> int:
        with self._transaction(name):
            return self._execute(_SQL[name], **values).rowcount

    def _begin(self, *begin: str) -> sqlite3.Connection:
        if self._inherited:
            raise StoreClosedError(self._inherited)
        with self._translated("begin"):
            connection: Any = self._connected(*begin, factory=HandlerConnection)
        self._handlers.add(connection)
        close_before_forks(self)
        return connection  # type: ignore[no-any-return]

    def _end(self, connection: HandlerConnection, how: str) -> None:
        try:
            with self._translated(how.lower()):
                connection.end(how)
        finally:
            connection.close()


def page_statement(listing: Listing) -> str:
    columns = ("state", "queue", "task", "correlation_id")
    # The state is compared by its name, because the condition of a partial index is, too.
    conditions = [
        f"state = '{listing.state.value}'" if column == "state" and listing.state else f"{column} = :{column}"
        for column in columns
        if getattr(listing, column) is not None
    ]
    if listing.older_than is not None:
        conditions.append("enqueued_at <= :now - :older_than")
    if listing.newer_than is not None:
        conditions.append("enqueued_at > :now - :newer_than")
    if listing.after is not None:
        conditions.append(f"seq {'<' if listing.newest_first else '>'} :after")
    page = _SQL["select"].replace("{conditions}", " AND ".join(conditions) or "true")
    return page.replace("{order}", "DESC" if listing.newest_first else "ASC")


def _values(queue: str, row: NewRow, now: float) -> tuple[Any, ...]:
    job_id, payload, priority, _, max_retries, correlation_id, _ = row
    retry_at = due_at(row, now)
    waiting = 0 if retry_at is None else 1
    return job_id, queue, payload, priority, max_retries, waiting, retry_at, now, correlation_id


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
        "traceback": end.traceback,
    }
