"""Rows to a job store: each a job of one queue, with an id of its own by which a repeated row is known."""

from __future__ import annotations

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

__all__ = ["JobSink", "JobStaging"]


class JobStaging(Protocol):
    """Tables beside the jobs, in the same database: rows of task attempts, and the newest batch of each query."""

    def prepare(self) -> None:
        """Make the tables, if they are not there."""

    def stage(self, columns: Iterator[Sequence[Array]], batch: Batch, attempt: int) -> int:
        """Put the rows of one attempt aside; how many."""

    def publish(self, attempts: Sequence[int], rows: int, batch: Batch) -> None:
        """Make jobs of them in one step, if the batch was not published before; remove them in any case."""

    def discard(self, attempts: Sequence[int], batch: Batch) -> None:
        """Remove them."""


class JobSink:
    def __init__(self, options: JobOptions, schema: StructType) -> None:
        checked_columns(schema)
        checked_name("queue", options.queue, error=JobConfigError)
        open_store(options.dsn).close()  # it has the schema, or gets it, or says why not
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
    """An attempt's name as a number that fits a bigint."""
    return int(attempt, 16) >> 1


def staging_lost(found: int, rows: int, batch: Batch) -> StagingLostError:
    return StagingLostError(
        f"{batch}: {found} of {rows} staged rows are there; nothing was published. They outlived stagingSeconds, or the "
        "database crashed and forgot them: write the batch again (a streaming query does so when it is restarted)"
    )
