"""Ready-made transactions for `run(db_factory=…)`, and a table that makes a handler's effect happen once.

`begin()` returns the driver's own object (a Session, a connection), so handlers use the API they know. The
same factories serve both consumers: where `commit` is a coroutine, the asyncio consumer awaits it. They
call only methods of the objects they are given, so importing this module imports no driver.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from conquiet.errors import QueueConfigError
from conquiet.flow import Call, Flow, run, run_async
from conquiet.queue.message import MalformedEntry, QueueMessage

__all__ = [
    "HandledEntries",
    "NoTransactions",
    "PsycopgTransactions",
    "SqlAlchemyTransactions",
    "SqliteTransactions",
]


class SqlAlchemyTransactions:
    """A new Session (or AsyncSession) per message, from a `sessionmaker` or another factory."""

    def __init__(self, session_factory: Callable[[], Any]) -> None:
        self._session_factory = session_factory

    def begin(self) -> Any:
        return (
            self._session_factory()
        )  # it begins with its first statement; commit returns its connection to the pool


class PsycopgTransactions:
    """A psycopg 3 connection (or AsyncConnection), in a transaction per message."""

    def __init__(self, connection: Any) -> None:
        if connection.autocommit:
            raise QueueConfigError(
                "the psycopg connection is in autocommit mode: connect with autocommit=False"
            )
        self._connection = connection

    def begin(self) -> Any:
        return self._connection  # psycopg begins with the first statement


class SqliteTransactions:
    """A sqlite3 connection, in a transaction per message that takes the write lock at its start."""

    def __init__(self, connection: Any) -> None:
        # Python 3.12 and newer: with autocommit=True `commit` does nothing; with False a transaction is always open
        # and BEGIN is refused. -1, the default, is the only mode that works.
        if getattr(connection, "autocommit", -1) != -1:
            raise QueueConfigError("the sqlite3 connection has autocommit set: connect without autocommit=…")
        self._connection = connection

    def begin(self) -> Any:
        # IMMEDIATE: a transaction that reads before it writes could find the write lock taken.
        self._connection.execute("BEGIN IMMEDIATE")
        return self._connection


class NoTransactions:
    """For handlers without effects in a database: commit and rollback do nothing."""

    def begin(self) -> NoTransactions:
        return self

    def commit(self) -> None:
        """Does nothing."""

    def rollback(self) -> None:
        """Does nothing: the effects of the handler stay, so they must be idempotent."""


class HandledEntries:
    """A table of the entries whose effect is committed, written in the handler's own transaction.

    A message may be delivered again after its effect was committed (for example if the ack was lost). The handler calls
    `first_time(tx, msg)` before its effect: the answer and the effect commit together or not at all, so the
    effect happens once, however often the message is delivered. On PostgreSQL a concurrent second delivery waits
    until the first one has ended.
    """

    def __init__(self, table: str = "conquiet_handled_entries") -> None:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,62}", table):
            raise QueueConfigError(
                f"{table!r} is not a table name: use letters, digits and _ only, at most 63"
            )
        self._create = (
            f"CREATE TABLE IF NOT EXISTS {table} (stream_key TEXT NOT NULL, consumer_group TEXT NOT NULL, "
            "entry_id TEXT NOT NULL, handled_at TIMESTAMP WITH TIME ZONE NOT NULL DEFAULT CURRENT_TIMESTAMP, "
            "PRIMARY KEY (stream_key, consumer_group, entry_id))"
        )
        self._insert = (
            f"INSERT INTO {table} (stream_key, consumer_group, entry_id) VALUES ({{}}, {{}}, {{}}) "  # noqa: S608
            "ON CONFLICT DO NOTHING"
        )

    def create_table(self, tx: Any) -> None:
        """Create the table, unless it exists, in `tx`. The caller commits `tx`."""
        run(self._execute(tx, self._create, ()))

    async def create_table_async(self, tx: Any) -> None:
        await run_async(self._execute(tx, self._create, ()))

    def first_time(self, tx: Any, msg: QueueMessage | MalformedEntry) -> bool:
        """Return True if no committed transaction has handled `msg`; then `tx` has recorded that it does."""
        return run(self._note(tx, msg))

    async def first_time_async(self, tx: Any, msg: QueueMessage | MalformedEntry) -> bool:
        return await run_async(self._note(tx, msg))

    def _note(self, tx: Any, msg: QueueMessage | MalformedEntry) -> Flow[bool]:
        result = yield from self._execute(tx, self._insert, (msg.stream, msg.group, msg.id))
        return result.rowcount == 1  # type: ignore[no-any-return]

    def _execute(self, tx: Any, sql: str, values: tuple[str, ...]) -> Flow[Any]:
        """Run `sql` in the form that the library of `tx` expects."""
        libraries = {cls.__module__.partition(".")[0] for cls in type(tx).__mro__}
        if "sqlalchemy" in libraries:
            from sqlalchemy import text

            names = [f"v{index}" for index in range(len(values))]
            statement = text(sql.format(*(f":{name}" for name in names)))
            return (yield Call(tx.execute, statement, dict(zip(names, values, strict=True))))
        if "psycopg" in libraries:
            return (yield Call(tx.execute, sql.format(*["%s"] * len(values)), values))
        if "sqlite3" in libraries:
            return (yield Call(tx.execute, sql.format(*"?" * len(values)), values))
        raise QueueConfigError(
            f"tx is a {type(tx).__qualname__}; HandledEntries knows SQLAlchemy sessions and connections, "
            "psycopg and sqlite3 connections"
        )
