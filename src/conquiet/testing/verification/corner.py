"""A corner of somebody's server to verify in: nothing of theirs is touched, and nothing of ours stays."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from conquiet.errors import JobConfigError, StoreUnavailableError, redact

__all__ = ["store_corner"]


@contextmanager
def store_corner(dsn: str) -> Iterator[str]:
    """A DSN of the same server: a schema of its own on PostgreSQL, a file of its own beside the one of SQLite."""
    scheme = dsn.partition(":")[0]
    if scheme in ("postgresql", "postgres"):
        with _schema(dsn) as corner:
            yield corner
    elif scheme == "sqlite":
        with _file(dsn) as corner:
            yield corner
    elif scheme == "memory":
        yield dsn
    else:
        raise JobConfigError(
            f"{redact(dsn)!r} cannot be verified: use postgresql://…, sqlite:///file.db or redis://…"
        )


@contextmanager
def _schema(dsn: str) -> Iterator[str]:
    import psycopg
    from psycopg import sql

    name = f"conquiet_verify_{secrets.token_hex(6)}"
    try:
        connection = psycopg.connect(dsn, autocommit=True, connect_timeout=10)
    except psycopg.Error as error:
        raise StoreUnavailableError(f"the server cannot be reached: {redact(str(error)).strip()}") from None
    with connection:
        try:
            connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(name)))
        except psycopg.errors.InsufficientPrivilege:
            raise StoreUnavailableError(
                "this user may not create a schema to verify in: GRANT CREATE ON DATABASE … TO …"
            ) from None
        try:
            yield f"{dsn}{'&' if '?' in dsn else '?'}options={quote(f'-csearch_path={name}')}"
        finally:
            connection.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(name)))


@contextmanager
def _file(dsn: str) -> Iterator[str]:
    address, _, options = dsn.partition("?")
    path = Path(f"{address.removeprefix('sqlite:///')}.verify-{secrets.token_hex(4)}")
    try:
        yield f"sqlite:///{path}{'?' if options else ''}{options}"
    finally:
        for end in ("", "-wal", "-shm"):
            path.with_name(path.name + end).unlink(missing_ok=True)
