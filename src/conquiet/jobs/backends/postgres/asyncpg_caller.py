"""A caller's connection of asyncpg, bare or within SQLAlchemy, as the store uses one of psycopg."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import psycopg
from psycopg import errors as pg
from psycopg.pq import TransactionStatus

from conquiet.errors import JobConfigError
from conquiet.jobs.backends.caller_connection import is_of

__all__ = ["AsyncpgCaller", "checked_caller"]

_PARAMETER = re.compile(r"%\((\w+)\)s")


def checked_caller(given: Any, theirs: Any) -> Any:
    """Return the caller's connection as the store uses it. Refuse one that is in no transaction."""
    if is_of("asyncpg", theirs) or is_of("sqlalchemy", theirs):
        if is_of("asyncpg", theirs) and not theirs.is_in_transaction():
            raise JobConfigError(
                "connection= needs a transaction, but this asyncpg connection commits every statement by itself: "
                "use it inside `async with connection.transaction():`"
            )
        return AsyncpgCaller(theirs)
    if not isinstance(theirs, psycopg.Connection | psycopg.AsyncConnection):
        raise JobConfigError(
            f"connection= takes a psycopg, asyncpg or SQLAlchemy connection, not {type(given).__name__}"
        )
    if theirs.autocommit and theirs.info.transaction_status == TransactionStatus.IDLE:
        raise JobConfigError(
            "connection= needs a transaction, but this psycopg connection commits every statement by itself: "
            "use it inside `with connection.transaction():`"
        )
    if theirs.info.encoding == "ascii":  # with a SQL_ASCII database psycopg returns bytes instead of text
        raise JobConfigError(
            "connection= needs an encoding, but this psycopg connection has none: execute(\"SET client_encoding TO 'UTF8'\")"
        )
    return theirs


class AsyncpgCaller:
    """Only what `PostgresBackend` needs of psycopg's AsyncConnection. Errors become psycopg's."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._fetch: Callable[..., Any] = (
            _fetch_by_sqlalchemy if is_of("sqlalchemy", connection) else _fetch_by_asyncpg
        )

    @property
    def closed(self) -> bool:
        is_closed = getattr(self._connection, "is_closed", None)
        return bool(is_closed() if is_closed else self._connection.closed)

    def cursor(self, row_factory: Any = None) -> _Cursor:
        return _Cursor(self)

    async def execute(self, sql: str) -> None:
        await self.rows(sql, ())

    async def rows(self, sql: str, values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        try:
            return [tuple(row) for row in await self._fetch(self._connection, sql, values)]
        except Exception as error:
            found = getattr(error, "orig", None) or error  # SQLAlchemy wraps the driver's error
            raise _of_psycopg(getattr(found, "sqlstate", None), str(found)) from error


class _Cursor:
    def __init__(self, caller: AsyncpgCaller) -> None:
        self._caller = caller
        self._rows: list[tuple[Any, ...]] = []

    async def execute(self, sql: str, values: dict[str, Any]) -> None:
        text, names = _numbered(sql)
        self._rows = await self._caller.rows(text, tuple(_literal(values[name]) for name in names))

    def fetchall(self) -> list[tuple[Any, ...]]:
        return self._rows


async def _fetch_by_asyncpg(connection: Any, sql: str, values: tuple[Any, ...]) -> Any:
    return await connection.fetch(sql, *values)


async def _fetch_by_sqlalchemy(connection: Any, sql: str, values: tuple[Any, ...]) -> Any:
    result = await connection.exec_driver_sql(sql, values or None)
    return result.fetchall() if result.returns_rows else ()


@lru_cache(64)
def _numbered(sql: str) -> tuple[str, tuple[str, ...]]:
    """Return the statement with $1, $2, … and the names in this order.

    All are sent as text and cast by the server: asyncpg takes no literals for arrays and numbers.
    """
    names = tuple(dict.fromkeys(_PARAMETER.findall(sql)))
    return _PARAMETER.sub(lambda found: f"${names.index(found[1]) + 1}::text", sql).replace("%%", "%"), names


def _literal(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, list):
        return str(value)
    texts = ["NULL" if item is None else _quoted(str(item)) for item in value]
    return f"{{{','.join(texts)}}}"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _of_psycopg(state: str | None, text: str) -> psycopg.Error:
    try:
        return pg.lookup(state)(text) if state else psycopg.OperationalError(text)
    except KeyError:
        return psycopg.DatabaseError(text)
