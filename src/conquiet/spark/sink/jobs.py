"""Writes rows to a job store: each becomes a job of one queue. The id identifies a row that is written again."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from pyspark.sql.types import StructType

from conquiet.checks import checked_name
from conquiet.errors import JobConfigError, MissingDependencyError, StagingLostError
from conquiet.jobs import open_store
from conquiet.spark.sink.job_rows import checked_columns, checked_rows
from conquiet.spark.sink.options import JobOptions
from conquiet.spark.sink.writers import Batch, Staged

if TYPE_CHECKING:
    from pyarrow import Array, RecordBatch

__all__ = ["JobSink", "JobStaging", "journal_name", "staging_lost"]


class JobStaging(Protocol):
    """Tables in the database of the jobs: the staged rows of task attempts, and the newest batch of each query and queue."""

    def prepare(self) -> None:
        """Create the tables if they do not exist."""

    def stage(self, columns: Iterator[Sequence[Array]], batch: Batch, attempt: int) -> int:
        """Stage the rows of one attempt and return their number."""

    def publish(self, attempts: Sequence[int], rows: int, batch: Batch) -> None:
        """Turn the staged rows into jobs, unless the batch is published, and remove them, in one transaction."""

    def discard(self, attempts: Sequence[int], batch: Batch) -> None:
        """Remove the staged rows of these attempts."""


class JobSink:
    def __init__(self, options: JobOptions, schema: StructType) -> None:
        checked_columns(schema)
        checked_name("queue", options.queue, error=JobConfigError)
        open_store(options.dsn).close()  # checks the schema, or creates it
        self._staging = _staging(options)
        self._staging.prepare()

    def stage(self, batches: Iterator[RecordBatch], batch: Batch, attempt: str) -> Staged:
        rows = self._staging.stage(map(checked_rows, batches), batch, _number(attempt))
        return Staged(batch, attempt, rows, parts=min(rows, 1))

    def publish(self, staged: Sequence[Staged], batch: Batch) -> None:
        rows = sum(one.rows for one in staged)
        if rows:
            self._staging.publish([_number(one.attempt) for one in staged if one.rows], rows, batch)

    def discard(self, staged: Sequence[Staged], batch: Batch) -> None:
        self._staging.discard([_number(one.attempt) for one in staged if one.rows], batch)


def _staging(options: JobOptions) -> JobStaging:
    if options.dsn.startswith("sqlite:"):
        from conquiet.spark.sink.sqlite_staging import SqliteStaging

        return SqliteStaging(options)
    try:
        from conquiet.spark.sink.postgres_staging import PostgresStaging
    except ImportError as error:
        raise MissingDependencyError('psycopg is not installed: pip install "conquiet[postgres]"') from error
    return PostgresStaging(options)


def _number(attempt: str) -> int:
    """Return the name of an attempt as a number that fits into a bigint."""
    return int(attempt, 16) >> 1


def journal_name(batch: Batch, queue: str) -> str:
    """Return what identifies the batches in the tables. One `foreachBatch` may write one batch to several queues, so
    the queue is part of it.
    """
    return json.dumps([batch.sink, queue], ensure_ascii=False)


def staging_lost(found: int, rows: int, batch: Batch) -> StagingLostError:
    return StagingLostError(
        f"{batch}: only {found} of {rows} staged rows exist; nothing was published. The others outlived stagingSeconds, "
        "or the database crashed and lost them: write the batch again (a streaming query does so when it is restarted)"
    )
