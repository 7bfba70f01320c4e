"""Creates the PostgreSQL back end for a DSN."""

from __future__ import annotations

from conquiet.clock import Clock
from conquiet.errors import AccessProblem, JobConfigError, MissingDependencyError
from conquiet.jobs.backends.protocol import Backend
from conquiet.jobs.backends.registry import MAX_CONNECTIONS
from conquiet.redaction import misread_url, redact_dsn

__all__ = ["open_postgres"]


def open_postgres(
    dsn: str, /, *, clock: Clock | None, awaits: bool, max_connections: int = MAX_CONNECTIONS
) -> Backend:
    if misread := misread_url(dsn):
        raise JobConfigError(
            f"{redact_dsn(dsn)!r} is not a usable PostgreSQL URL ({misread}): write it as "
            "postgresql://user:password@host:5432/database",
            problem=AccessProblem.ADDRESS,
        )
    if clock is not None:
        raise JobConfigError("the PostgreSQL store uses the server's clock; it takes no clock=")
    try:
        from conquiet.jobs.backends.postgres.backend import PostgresBackend
    except ImportError as error:
        raise MissingDependencyError('psycopg is not installed: pip install "conquiet[postgres]"') from error
    return PostgresBackend(dsn, awaits=awaits, max_connections=max_connections)
