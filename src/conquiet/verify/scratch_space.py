"""A scratch space on the server: nothing else on the server is touched, and everything in it is removed."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from conquiet.access import access_problem
from conquiet.errors import JobConfigError, StoreUnavailableError, redact
from conquiet.extras import needed_by
from conquiet.redaction import misread_url, redact_dsn, without_password

__all__ = ["StreamScratch", "store_scratch", "stream_scratch"]


@contextmanager
def store_scratch(dsn: str) -> Iterator[str]:
    """A DSN on the same server: a new schema on PostgreSQL, a new file next to the given one on SQLite."""
    if misread := misread_url(dsn):
        raise JobConfigError(f"{redact_dsn(dsn)!r} cannot be verified: {misread}")
    scheme = dsn.partition(":")[0]
    if scheme in ("postgresql", "postgres"):
        with _schema(dsn) as scratch:
            yield scratch
    elif scheme == "sqlite":
        with _file(dsn) as scratch:
            yield scratch
    elif scheme == "memory":
        yield dsn
    else:
        raise JobConfigError(
            f"{redact(dsn)!r} cannot be verified: use postgresql://…, sqlite:///file.db or redis://…"
        )


class StreamScratch:
    """Keys on a Redis server that begin with `conquiet-verify-`."""

    def __init__(self, redis: Any, url: str) -> None:
        self.redis = redis
        self.url = url
        self._prefix = f"conquiet-verify-{secrets.token_hex(4)}"
        self._keys: set[str] = set()

    def key(self, name: str) -> str:
        made = f"{self._prefix}-{name}"
        self._keys.add(made)
        return made

    def clear(self) -> None:
        """Delete only the keys named here: a search would be expensive on a server with millions of keys."""
        with _translating(f"remove the keys {self._prefix}-* of this verification"):
            for key in sorted(self._keys):
                self.redis.delete(key)


@contextmanager
def stream_scratch(url: str) -> Iterator[StreamScratch]:
    from conquiet.queue import connect  # here: a job store is verified without redis-py

    with connect(url) as redis:
        with _translating("the server cannot be reached"):
            redis.ping()
        scratch = StreamScratch(redis, url)
        try:
            yield scratch
        finally:
            scratch.clear()


@contextmanager
def _translating(what: str) -> Iterator[None]:
    from conquiet.queue.wire import TRANSPORT_ERRORS, translated

    try:
        yield
    except TRANSPORT_ERRORS as error:
        raise translated(what, error) from error


@contextmanager
def _schema(dsn: str) -> Iterator[str]:
    with needed_by("verification of a PostgreSQL server"):
        import psycopg
        from psycopg import sql

    name = f"conquiet_verify_{secrets.token_hex(6)}"

    def refused(what: str, error: psycopg.Error) -> StoreUnavailableError:
        shown = without_password(error)
        return StoreUnavailableError(f"{what}: {redact(str(shown)).strip()}", problem=access_problem(shown))

    try:
        connection = psycopg.connect(dsn, autocommit=True, connect_timeout=10)
    except psycopg.Error as error:
        raise refused("the server cannot be reached", error) from without_password(error)
    try:
        try:
            connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(name)))
        except psycopg.errors.InsufficientPrivilege:
            raise StoreUnavailableError(
                "this user may not create a schema for the verification: GRANT CREATE ON DATABASE … TO …"
            ) from None
        except psycopg.Error as error:
            raise refused("no schema for the verification could be created", error) from error
        try:
            yield f"{dsn}{'&' if '?' in dsn else '?'}options={quote(f'-csearch_path={name}')}"
        finally:
            try:
                connection.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(name)))
            except psycopg.Error as error:
                what = (
                    f"the schema of this verification could not be removed (run DROP SCHEMA {name} CASCADE)"
                )
                raise refused(what, error) from error
    finally:
        connection.close()


@contextmanager
def _file(dsn: str) -> Iterator[str]:
    address, _, options = dsn.partition("?")
    path = Path(f"{unquote(address.removeprefix('sqlite:///'))}.verify-{secrets.token_hex(4)}")
    try:
        yield f"sqlite:///{quote(str(path))}{'?' if options else ''}{options}"
    finally:
        for end in ("", "-wal", "-shm"):
            left = path.with_name(path.name + end)
            try:
                left.unlink(missing_ok=True)
            except OSError as error:
                raise StoreUnavailableError(f"{left} could not be removed: {error.strerror}") from error
