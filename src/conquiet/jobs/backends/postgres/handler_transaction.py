"""The transaction that a handler gets. It is marked, so that one which the handler has ended is noticed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from psycopg.rows import tuple_row

from conquiet.flow import Call, Flow
from conquiet.jobs.backends.caller_connection import transaction_ended
from conquiet.jobs.backends.postgres.connections import PostgresConnections

__all__ = ["HandlerTransactions", "check_mark"]

# A setting for the rest of the transaction: after a commit or a rollback, also one in SQL, it is gone.
_MARK = (
    "SET LOCAL conquiet.transaction = 'open'; SET LOCAL timezone = 'UTC'; SET TRANSACTION ISOLATION LEVEL {}"
)
_MARKED = "SELECT current_setting('conquiet.transaction', true)"


class HandlerTransactions(PostgresConnections):
    def begin(self) -> Flow[Any]:
        connection = yield from self._take()
        with self._translated("begin", connection):
            yield from self._first_step(connection, Call(connection.set_autocommit, False))
            try:
                yield from _mark(connection)
            except BaseException:  # cancellation included: nobody else has this connection yet
                yield Call(connection.close, shield=True)
                raise
        return connection

    def commit(self, connection: Any) -> Flow[None]:
        _unmark(connection)
        with self._translated("commit", connection, unknown=True):
            yield from self._last_step(connection, connection.commit)
        yield from self._give_back(connection)

    def roll_back(self, connection: Any) -> Flow[None]:
        _unmark(connection)
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


def _mark(connection: Any) -> Flow[None]:
    yield Call(connection.execute, _MARK.format(vars(connection)["isolation_of_handlers"]))
    vars(connection)["commit"] = (
        _refuse  # a rollback cannot be refused: whoever rolls back has failed already
    )


def _unmark(connection: Any) -> None:
    vars(connection).pop("commit", None)


def check_mark(connection: Any) -> Flow[None]:
    """Raise if it is the connection of a handler, and in another transaction than at first."""
    if vars(connection).get("commit") is not _refuse:
        return
    cursor = connection.cursor(row_factory=tuple_row)  # the handler may have set another row factory
    yield Call(cursor.execute, _MARKED)
    if (yield Call(cursor.fetchone)) != ("open",):
        raise transaction_ended()


def _refuse() -> NoReturn:
    raise transaction_ended()
