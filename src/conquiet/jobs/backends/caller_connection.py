"""Finds the driver's connection in what the caller passes as `connection=`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from conquiet.errors import JobConfigError, JobRejectedError, StoreUnavailableError, redact
from conquiet.flow import Call, Flow

__all__ = ["after_commit", "driver_connection", "is_of", "is_session", "transaction_ended"]

_TOLD = "conquiet.after_commit"  # in Session.info: what to call when the transaction has ended


def transaction_ended() -> JobRejectedError:
    """The error about a handler that ends the transaction of its context itself."""
    return JobRejectedError(
        "the handler ended the transaction of context.connection itself: with commit() or rollback(), or with a "
        "`with` block or SQLAlchemy Session that does so when it is left. The job and its effect would no longer be "
        "one, so the job is Failed. Leave the transaction open, the worker commits it together with the ack; for a "
        "part that may fail use a savepoint"
    )


def is_of(library: str, connection: Any) -> bool:
    """Return whether it is an object of this library, which may not be installed."""
    return any(cls.__module__.partition(".")[0] == library for cls in type(connection).__mro__)


def is_session(connection: Any) -> bool:
    """Return whether it is a SQLAlchemy Session that commits its transaction itself. One on a given connection does not."""
    return (
        is_of("sqlalchemy", connection)
        and not hasattr(connection, "exec_driver_sql")
        and not hasattr(connection.bind, "exec_driver_sql")
    )


def after_commit(session: Any, call: Callable[[], None]) -> None:
    """Have `call` called when the transaction of this Session has ended: after its commit, but also after a rollback."""
    from sqlalchemy import event
    from sqlalchemy.orm import Session

    if not event.contains(Session, "after_transaction_end", _transaction_ends):
        event.listen(Session, "after_transaction_end", _transaction_ends)
    session.info.setdefault(_TOLD, []).append(call)


def _transaction_ends(session: Any, transaction: Any) -> None:
    if transaction.parent is None and _TOLD in session.info:  # not one with a savepoint
        for call in session.info.pop(_TOLD):
            call()


def driver_connection(connection: Any, awaits: bool) -> Flow[Any]:
    """Return the driver's connection of a SQLAlchemy Session, Connection or their asyncio twins, or `connection` itself.

    With asyncpg it is the AsyncConnection: asyncpg begins no transaction by itself, only SQLAlchemy does.
    """
    if not is_of("sqlalchemy", connection):
        return connection
    waits = hasattr(connection, "sync_session") or hasattr(connection, "sync_connection")
    if waits and not awaits:
        raise JobConfigError(
            f"connection= of a synchronous call takes no SQLAlchemy {type(connection).__name__}: use the coroutines, "
            "as in `await task.enqueue_async(…)` or `await store.enqueue(…)` of open_async_store()"
        )
    try:
        if not waits:
            return _within_sqlalchemy(connection)
        return (yield from _within_asyncio(connection))
    except JobConfigError:
        raise
    except Exception as error:
        # An error of SQLAlchemy, which may not be installed: the connection is closed, or its database unreachable.
        raise StoreUnavailableError(
            f"the SQLAlchemy connection given as connection= cannot be used: {redact(str(error)).strip()}. "
            "Nothing was changed"
        ) from error


def _within_sqlalchemy(connection: Any) -> Any:
    if not hasattr(connection, "exec_driver_sql"):  # a Session: connection() begins its transaction
        connection = connection.connection()
    elif not connection.in_transaction():
        connection.begin()  # otherwise SQLAlchemy would not commit statements that bypass it
    return connection.connection.driver_connection


def _within_asyncio(connection: Any) -> Flow[Any]:
    if hasattr(connection, "sync_session"):  # an AsyncSession
        connection = yield Call(connection.connection)
    elif not connection.in_transaction():
        yield Call(connection.begin)
    raw = yield Call(connection.get_raw_connection)
    if not is_of("asyncpg", raw.driver_connection):
        return raw.driver_connection
    if raw.dbapi_connection.autocommit:
        raise JobConfigError(
            "connection= needs a transaction, but this AsyncConnection commits every statement by itself: "
            'use it without isolation_level="AUTOCOMMIT"'
        )
    return connection
