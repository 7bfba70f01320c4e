"""Staging for the job sink on SQLite with a local master: as on PostgreSQL, but in short transactions.

SQLite has one writer at a time, so a task holds the write lock for one Arrow batch at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from conquiet.clock import SYSTEM_CLOCK
from conquiet.jobs.backends.sqlite.bulk import insert_selected
from conquiet.spark.databases import SqliteFile
from conquiet.spark.sink.jobs import journal_name, staging_lost
from conquiet.spark.sink.options import JobOptions
from conquiet.spark.sink.writers import Batch
from conquiet.sqlite_files import transaction

if TYPE_CHECKING:
    from pyarrow import Array

__all__ = ["SqliteStaging"]


class SqliteStaging:
    def __init__(self, options: JobOptions) -> None:
        self._options = options
        self._file = SqliteFile(options.dsn)

    def prepare(self) -> None:
        with self._file.transaction("prepare the staging of jobs") as connection:
            for statement in _TABLES.split(";"):
                connection.execute(statement)

    def stage(self, columns: Iterator[Sequence[Array]], batch: Batch, attempt: int) -> int:
        rows, journal = 0, journal_name(batch, self._options.queue)
        with self._file.open() as connection:
            for part in columns:
                values = zip(*(column.to_pylist() for column in part), strict=True)
                with transaction(connection, "stage jobs"):
                    # Repeated for every part: publishing removes the entry, even while a late attempt is still staging.
                    connection.execute(_REGISTER, (attempt, journal, batch.number, SYSTEM_CLOCK.time()))
                    connection.executemany(_STAGE, ((attempt, *row) for row in values))
                rows += len(part[0])
        return rows

    def publish(self, attempts: Sequence[int], rows: int, batch: Batch) -> None:
        journal = journal_name(batch, self._options.queue)
        with self._file.transaction("publish jobs") as connection:
            now = SYSTEM_CLOCK.time()
            connection.execute("CREATE TEMP TABLE published AS SELECT 0 AS attempt WHERE 0")
            connection.executemany("INSERT INTO published VALUES (?)", ((attempt,) for attempt in attempts))
            connection.execute(
                "DELETE FROM conquiet_spark_batches WHERE published_at < ? AND sink <> ?",
                (now - self._options.journal_seconds, journal),
            )
            begun = connection.execute(_JOURNAL, (journal, batch.number, now)).rowcount == 1
            if begun:
                found = connection.execute(_COUNT).fetchone()[0]
                if found != rows:
                    raise staging_lost(found, rows, batch)
                insert_selected(
                    connection,
                    _STAGED,
                    queue=self._options.queue,
                    max_retries=self._options.max_retries,
                    now=now,
                )
            values = {
                "sink": journal,
                "batch": batch.number,
                "before": now - self._options.staging_seconds,
            }
            connection.execute(_REMOVE_OVER, values)
            connection.execute(_UNREGISTER_OVER, values)

    def discard(self, attempts: Sequence[int], batch: Batch) -> None:
        with self._file.transaction("discard jobs") as connection:
            for table in ("staging", "attempts"):
                statement = f"DELETE FROM conquiet_spark_{table} WHERE attempt = ?"  # noqa: S608 - one of two names
                connection.executemany(statement, ((attempt,) for attempt in attempts))


_TABLES = """
CREATE TABLE IF NOT EXISTS conquiet_spark_staging (
    attempt INTEGER NOT NULL,
    id TEXT NOT NULL,
    payload TEXT NOT NULL,
    priority INTEGER NOT NULL,
    delay_seconds REAL NOT NULL,
    correlation_id TEXT
);
CREATE TABLE IF NOT EXISTS conquiet_spark_attempts (
    attempt INTEGER PRIMARY KEY,
    sink TEXT NOT NULL,
    batch INTEGER NOT NULL,
    staged_at REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS conquiet_spark_batches (
    sink TEXT PRIMARY KEY,
    batch INTEGER NOT NULL,
    published_at REAL NOT NULL
)
"""

_REGISTER = (
    "INSERT OR IGNORE INTO conquiet_spark_attempts (attempt, sink, batch, staged_at) VALUES (?, ?, ?, ?)"
)
_STAGE = """
INSERT INTO conquiet_spark_staging (attempt, id, payload, priority, delay_seconds, correlation_id)
VALUES (?, ?, ?, ?, ?, ?)
"""
_JOURNAL = """
INSERT INTO conquiet_spark_batches AS known (sink, batch, published_at) VALUES (?, ?, ?)
ON CONFLICT (sink) DO UPDATE SET batch = excluded.batch, published_at = excluded.published_at
WHERE known.batch < excluded.batch
"""
_COUNT = "SELECT count(*) FROM conquiet_spark_staging WHERE attempt IN (SELECT attempt FROM temp.published)"
_STAGED = """
SELECT id, payload, priority, delay_seconds, correlation_id FROM conquiet_spark_staging
WHERE attempt IN (SELECT attempt FROM temp.published)
"""
_OVER = "(sink = :sink AND batch <= :batch) OR staged_at < :before"
_REMOVE_OVER = f"""
DELETE FROM conquiet_spark_staging WHERE attempt IN (SELECT attempt FROM conquiet_spark_attempts WHERE {_OVER})
"""  # noqa: S608 - constants
_UNREGISTER_OVER = f"DELETE FROM conquiet_spark_attempts WHERE {_OVER}"  # noqa: S608 - constants
