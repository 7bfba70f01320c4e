"""Effects in the store's own database, made through the handler's connection, and read from outside."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from typing import Any

import psycopg

from conquiet.jobs import Job, JobContext, JobStore

Handler = Callable[..., Any]


class Effects:
    """A table of numbers. It has no key, so that a second effect of one job shows."""

    def __init__(self, store: JobStore) -> None:
        self._dsn = store.dsn
        self._postgres = store.capabilities.name == "postgresql"
        self.execute("DROP TABLE IF EXISTS effects")
        self.execute("CREATE TABLE effects (n INTEGER)")

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        if self._postgres:
            with psycopg.connect(self._dsn, autocommit=True) as client:
                cursor = client.execute(statement)
                return cursor.fetchall() if cursor.description else []
        connection = sqlite3.connect(self._dsn.removeprefix("sqlite:///"), isolation_level=None, timeout=30)
        try:
            return connection.execute(statement).fetchall()
        finally:
            connection.close()

    def numbers(self) -> list[int]:
        return sorted(n for (n,) in self.execute("SELECT n FROM effects"))

    def left_open(self) -> int:
        """The number of open transactions. (On SQLite one would hold the write lock.)"""
        if not self._postgres:
            self.execute("BEGIN IMMEDIATE")
            return 0
        ((count,),) = self.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in%'"
        )
        return int(count)


def insert(job: Job, context: JobContext) -> None:
    context.connection.execute(f"INSERT INTO effects VALUES ({job.payload['n']})")


async def insert_async(job: Job, context: JobContext) -> None:
    result = (await context.get_connection()).execute(f"INSERT INTO effects VALUES ({job.payload['n']})")
    if asyncio.iscoroutine(result):
        await result


def handler_in(
    isolation: str, after: Callable[[Job, JobContext], Any] = lambda job, context: None
) -> Handler:
    """A handler that makes its effect, and then calls `after` (for asyncio on another thread)."""

    def handle(job: Job, context: JobContext) -> None:
        insert(job, context)
        after(job, context)

    async def handle_async(job: Job, context: JobContext) -> None:
        await insert_async(job, context)
        await asyncio.to_thread(after, job, context)

    return handle if isolation == "thread" else handle_async
