"""The contents of a database, read without conquiet's own code."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import psycopg

__all__ = ["execute", "execute_many", "tables"]


def execute(dsn: str, statement: str, *values: object) -> list[tuple[Any, ...]]:
    """Run one statement with `?` placeholders and return its rows."""
    if dsn.startswith("sqlite"):
        with (
            closing(sqlite3.connect(dsn.removeprefix("sqlite:///").partition("?")[0])) as connection,
            connection,
        ):
            return connection.execute(statement, values).fetchall()
    with psycopg.connect(dsn, autocommit=True) as client:
        cursor = client.execute(statement.replace("?", "%s").encode(), values)
        return cursor.fetchall() if cursor.description else []


def execute_many(dsn: str, statement: str, rows: Sequence[tuple[object, ...]]) -> None:
    """Run one statement for each of `rows`, all of them or none."""
    if dsn.startswith("sqlite"):
        with (
            closing(sqlite3.connect(dsn.removeprefix("sqlite:///").partition("?")[0])) as connection,
            connection,
        ):
            connection.executemany(statement, rows)
        return
    with psycopg.connect(dsn) as client:
        client.cursor().executemany(statement.replace("?", "%s").encode(), rows)


def tables(dsn: str) -> Sequence[str]:
    """The names of the tables; none if there is no database."""
    if dsn.startswith("memory"):
        return []
    where = "sqlite_master WHERE type = 'table'"
    if not dsn.startswith("sqlite"):
        where = "(SELECT tablename AS name FROM pg_tables WHERE schemaname !~ '^(pg_|information)') AS found"
    return sorted(name for (name,) in execute(dsn, f"SELECT name FROM {where}"))
