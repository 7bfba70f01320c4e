"""The caller's own database connection, out of whatever holds it."""

from __future__ import annotations

from typing import Any

from conquiet.errors import JobConfigError, StoreUnavailableError, redact

__all__ = ["driver_connection"]


def driver_connection(connection: Any) -> Any:
    """The psycopg or sqlite3 connection behind a SQLAlchemy Session or Connection, or itself."""
    if hasattr(connection, "sync_session") or hasattr(connection, "sync_connection"):
        raise JobConfigError(
            "connection= takes no SQLAlchemy AsyncSession or AsyncConnection: use its run_sync(), or psycopg's own"
        )
    if not any(cls.__module__.startswith("sqlalchemy.") for cls in type(connection).__mro__):
        return connection
    try:
        return _within_sqlalchemy(connection)
    except Exception as error:
        # SQLAlchemy's own, which need not be installed: the connection is closed, or its database is away.
        raise StoreUnavailableError(
            f"the SQLAlchemy connection given as connection= cannot be used: {redact(str(error)).strip()}. "
            "Nothing was changed"
        ) from error


def _within_sqlalchemy(connection: Any) -> Any:
    if not hasattr(connection, "exec_driver_sql"):  # a Session: its Connection, with its transaction begun
        connection = connection.connection()
    elif not connection.in_transaction():
        connection.begin()  # what is done behind its back it would not commit otherwise
    return connection.connection.driver_connection
