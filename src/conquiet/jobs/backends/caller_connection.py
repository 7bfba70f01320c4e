"""Finds the driver's connection in what the caller passes as `connection=`."""

from __future__ import annotations

from typing import Any

from conquiet.errors import JobConfigError, StoreUnavailableError, redact

__all__ = ["driver_connection"]


def driver_connection(connection: Any) -> Any:
    """Return the psycopg or sqlite3 connection of a SQLAlchemy Session or Connection, or `connection` itself."""
    if hasattr(connection, "sync_session") or hasattr(connection, "sync_connection"):
        raise JobConfigError(
            "connection= takes no SQLAlchemy AsyncSession or AsyncConnection: use its run_sync(), or psycopg's own"
        )
    if not any(cls.__module__.startswith("sqlalchemy.") for cls in type(connection).__mro__):
        return connection
    try:
        return _within_sqlalchemy(connection)
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
