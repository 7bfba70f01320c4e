"""Staging for the job sink on PostgreSQL: COPY loads the rows, and one statement turns them into jobs.

The staging table is unlogged, which makes COPY cheap. A server crash empties it, which publishing detects by counting
the rows. A task attempt is one transaction, so a killed attempt leaves no rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import psycopg
import pyarrow as pa
from psycopg import errors as pg

from conquiet.jobs.backends.postgres.bulk import insert_selected
from conquiet.spark.databases import copy_lines, postgres_transaction
from conquiet.spark.sink.job_rows import COLUMNS
from conquiet.spark.sink.jobs import journal_name, staging_lost
from conquiet.spark.sink.options import JobOptions
from conquiet.spark.sink.writers import Batch

__all__ = ["PostgresStaging"]


class PostgresStaging:
    def __init__(self, options: JobOptions) -> None:
        self._options = options

    def prepare(self) -> None:
        with postgres_transaction(self._options.dsn, "prepare") as connection:
            # Two queries that start at the same time must not both create the tables.
            connection.execute("SELECT pg_advisory_xact_lock(7305812)")
            connection.execute(_TABLES)

    def stage(self, columns: Iterator[Sequence[pa.Array]], batch: Batch, attempt: int) -> int:
        rows = 0
        with postgres_transaction(self._options.dsn, "stage") as connection:
            connection.execute(
                _REGISTER, {"attempt": attempt, "sink": self._journal(batch), "batch": batch.number}
            )
            with connection.cursor().copy(_COPY) as copy:
                for part in columns:
                    copy.write(copy_lines(str(attempt), *part))
                    rows += len(part[0])
        return rows

    def publish(self, attempts: Sequence[int], rows: int, batch: Batch) -> None:
        values = {
            "attempts": list(attempts),
            "sink": self._journal(batch),
            "batch": batch.number,
            "journal_seconds": self._options.journal_seconds,
        }
        with postgres_transaction(self._options.dsn, "publish") as connection:
            # First, so that of two drivers with the same batch the second waits here, before it holds locks that the
            # first one needs.
            if connection.execute(_JOURNAL, values).rowcount:
                added = insert_selected(
                    connection,
                    _STAGED,
                    values,
                    queue=self._options.queue,
                    max_retries=self._options.max_retries,
                )
                found = (
                    rows if added == rows and _emptied(connection, values) else _removed(connection, values)
                )
                if found != rows:
                    raise staging_lost(found, rows, batch)
            else:
                _removed(connection, values)
            self._remove_others(connection, attempts, batch)

    def discard(self, attempts: Sequence[int], batch: Batch) -> None:
        with postgres_transaction(self._options.dsn, "discard") as connection:
            _removed(connection, {"attempts": list(attempts)})
            connection.execute(_UNREGISTER, {"attempts": list(attempts)})

    def _journal(self, batch: Batch) -> str:
        return journal_name(batch, self._options.queue)

    def _remove_others(
        self, connection: psycopg.Connection[Any], attempts: Sequence[int], batch: Batch
    ) -> None:
        """Remove the rows of attempts that Spark did not choose, and of killed drivers."""
        values = {
            "sink": self._journal(batch),
            "batch": batch.number,
            "seconds": self._options.staging_seconds,
        }
        left = {attempt for (attempt,) in connection.execute(_LEFT, values)} - set(attempts)
        if left:
            _removed(connection, {"attempts": list(left)})


def _removed(connection: psycopg.Connection[Any], values: dict[str, Any]) -> int:
    return connection.execute(_REMOVE, values).rowcount


def _emptied(connection: psycopg.Connection[Any], values: dict[str, Any]) -> bool:
    """TRUNCATE the staging table, which leaves no dead rows, if all its rows belong to this batch; else return False.

    Under the lock no attempt is staging, and every attempt that has staged rows is registered.
    """
    try:
        with connection.transaction():
            connection.execute("LOCK TABLE conquiet_spark_staging IN ACCESS EXCLUSIVE MODE NOWAIT")
            if connection.execute(_OTHERS, values).fetchone():
                return False
            connection.execute("TRUNCATE conquiet_spark_staging")
    except (pg.LockNotAvailable, pg.InsufficientPrivilege):
        return False
    return True


_TABLES = """
CREATE UNLOGGED TABLE IF NOT EXISTS conquiet_spark_staging (
    attempt bigint NOT NULL,
    id text NOT NULL,
    payload text NOT NULL,
    priority int NOT NULL,
    delay_seconds float8 NOT NULL,
    correlation_id text
);
CREATE TABLE IF NOT EXISTS conquiet_spark_attempts (
    attempt bigint PRIMARY KEY,
    sink text NOT NULL,
    batch bigint NOT NULL,
    staged_at timestamptz NOT NULL
);
CREATE TABLE IF NOT EXISTS conquiet_spark_batches (
    sink text PRIMARY KEY,
    batch bigint NOT NULL,
    published_at timestamptz NOT NULL
);
"""

_REGISTER = """
INSERT INTO conquiet_spark_attempts (attempt, sink, batch, staged_at)
VALUES (%(attempt)s, %(sink)s, %(batch)s, clock_timestamp())
"""

_COPY = f"COPY conquiet_spark_staging (attempt, {', '.join(COLUMNS)}) FROM STDIN"

# Affects one row if the batch is new.
_JOURNAL = """
WITH expired AS (
    DELETE FROM conquiet_spark_batches
    WHERE published_at < clock_timestamp() - %(journal_seconds)s * interval '1 second' AND sink <> %(sink)s
)
INSERT INTO conquiet_spark_batches AS known (sink, batch, published_at)
VALUES (%(sink)s, %(batch)s, clock_timestamp())
ON CONFLICT (sink) DO UPDATE SET batch = excluded.batch, published_at = excluded.published_at
WHERE known.batch < excluded.batch
"""

_STAGED = """
SELECT id, payload, priority, delay_seconds, correlation_id FROM conquiet_spark_staging
WHERE attempt = ANY(%(attempts)s::bigint[])
"""

_LEFT = """
DELETE FROM conquiet_spark_attempts
WHERE (sink = %(sink)s AND batch <= %(batch)s) OR staged_at < clock_timestamp() - %(seconds)s * interval '1 second'
RETURNING attempt
"""

_OTHERS = "SELECT 1 FROM conquiet_spark_attempts WHERE attempt <> ALL(%(attempts)s::bigint[]) LIMIT 1"

_REMOVE = "DELETE FROM conquiet_spark_staging WHERE attempt = ANY(%(attempts)s::bigint[])"

_UNREGISTER = "DELETE FROM conquiet_spark_attempts WHERE attempt = ANY(%(attempts)s::bigint[])"
