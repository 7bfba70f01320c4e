"""Runs statements, each on a connection of the store and committed, or in the transaction of a caller."""

from __future__ import annotations

from functools import partial
from typing import Any

import psycopg
from psycopg import errors as pg
from psycopg.rows import tuple_row

from conquiet.errors import JobConfigError, PayloadError, StoreUnavailableError
from conquiet.flow import Call, Flow
from conquiet.jobs.backends.caller_connection import driver_connection
from conquiet.jobs.backends.postgres.asyncpg_caller import checked_caller
from conquiet.jobs.backends.postgres.handler_transaction import HandlerTransactions, check_mark

__all__ = ["Statements"]


class Statements(HandlerTransactions):
    def _rows(
        self, sql: str, values: dict[str, Any], change: str = "", theirs: Any = None, savepoint: bool = False
    ) -> Flow[list[Any]]:
        """Return the rows of one statement: committed on a connection of ours, or in the caller's transaction.

        `change` names what the statement changes. It is "" for a read, whose outcome is never unknown.
        """
        if theirs is not None:
            found = checked_caller(theirs, (yield from driver_connection(theirs, self._awaits)))
            return (yield from self._rows_in(found, sql, values, change, savepoint))
        cursor = yield from self._placed(self._execute(sql, values, change))
        rows: list[Any] = yield Call(cursor.fetchall)  # they have already been received
        return rows

    def _count(self, sql: str, values: dict[str, Any], change: str) -> Flow[int]:
        cursor = yield from self._placed(self._execute(sql, values, change))
        return int(cursor.rowcount)

    def _execute(self, sql: str, values: dict[str, Any], change: str) -> Flow[Any]:
        connection = yield from self._take()
        try:
            with self._translated(change or "read", connection, unknown=bool(change)):
                cursor = yield Call(partial(connection.execute, sql, values, binary=True))
        except (StoreUnavailableError, PayloadError, JobConfigError, pg.UniqueViolation) as error:
            yield from self._after_refusal(connection, error)
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
            yield from check_mark(connection)
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
