"""The steps of a migration of the PostgreSQL schema, in one transaction."""

from __future__ import annotations

from typing import Any

from conquiet.flow import Call, Flow
from conquiet.jobs.backends import schema
from conquiet.jobs.backends.sql_files import Migration

__all__ = ["migrated"]

# Insert version 0 into a new table, but not into one that was emptied.
_NEW_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS conquiet_schema (version int NOT NULL)",
    "INSERT INTO conquiet_schema SELECT 0 WHERE NOT EXISTS (SELECT FROM conquiet_schema) "
    "AND to_regclass('conquiet_jobs') IS NULL",
)
_ADD_OLDEST = "ALTER TABLE conquiet_schema ADD COLUMN IF NOT EXISTS oldest int NOT NULL DEFAULT 0"
_SET_VERSION = "UPDATE conquiet_schema SET version = %s, oldest = %s"


def migrated(connection: Any, known: list[Migration], where: str, target: int | None) -> Flow[list[str]]:
    """Take the schema to version `target` and return the steps taken. If it fails, the caller closes the connection."""
    done: list[str] = []
    yield Call(connection.execute, "BEGIN ISOLATION LEVEL READ COMMITTED")
    # Two processes that start at the same time must not both create the tables.
    yield Call(connection.execute, "SELECT pg_advisory_xact_lock(7305811)")
    for statement in _NEW_SCHEMA:
        yield Call(connection.execute, statement)
    cursor = yield Call(connection.execute, "SELECT * FROM conquiet_schema LIMIT 2")
    found = schema.stored_version((yield Call(cursor.fetchall)), where)
    for step in schema.steps(known, found, target):
        yield Call(connection.execute, step.sql)
        yield Call(connection.execute, _ADD_OLDEST)
        yield Call(connection.execute, _SET_VERSION, (step.version, step.oldest))
        done.append(step.name)
    yield Call(connection.execute, "COMMIT")
    return done
