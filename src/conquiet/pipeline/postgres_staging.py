"""Staging for the job sink on PostgreSQL: COPY in, and one statement that makes jobs of what is there.

The staging table is unlogged, so that COPY costs what copying costs. A crash of the server empties it, which is noticed:
the commit counts. An attempt is one transaction: killed, it leaves nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from typing import Any

import psycopg
import pyarrow as pa
from pyarrow import csv

from conquiet.errors import StoreUnavailableError, redact
from conquiet.pipeline.job_rows import COLUMNS
from conquiet.pipeline.job_sink import staging_lost
from conquiet.pipeline.sink_options import JobOptions
from conquiet.pipeline.sinks import Batch

__all__ = ["PostgresStaging"]

_CSV = csv.WriteOptions(
    include_header=False, quoting_style="needed"
)  # strings are quoted, and so differ from null


class PostgresStaging:
    def __init__(self, options: JobOptions) -> None:
        self._options = options

    def prepare(self) -> None:
        with self._connection("prepare") as connection:
            # Two queries that start at once must not both create the tables.
            connection.execute("SELECT pg_advisory_xact_lock(7305812)")
            connection.execute(_TABLES)

    def stage(self, columns: Iterator[Sequence[pa.Array]], batch: Batch, attempt: int) -> int:
        rows = 0
        with self._connection("stage") as connection:
            connection.execute(_REGISTER, {"attempt": attempt, "sink": batch.sink, "batch": batch.number})
            with connection.cursor().copy(_COPY) as copy:
                for part in columns:
                    copy.write(_csv(attempt, part))
                    rows += len(part[0])
        return rows

    def publish(self, attempts: Sequence[int], rows: int, batch: Batch) -> None:
        values = {
            "attempts": list(attempts),
            "sink": batch.sink,
            "batch": batch.number,
            "queue": self._options.queue,
            "max_retries": self._options.max_retries,
            "journal_seconds": self._options.journal_seconds,
        }
        with self._connection("publish") as connection:
            # Of two drivers with one batch, the second waits here, holding nothing that the first wants to remove.
            connection.execute(_LOCK, values)
            found, begun = connection.execute(_PUBLISH, values).fetchone() or (0, 0)
            if begun and found != rows:
                raise staging_lost(found, rows, batch)
            self._remove_others(connection, attempts, batch)

    def discard(self, attempts: Sequence[int], batch: Batch) -> None:
        with self._connection("discard") as connection:
            connection.execute(_REMOVE, {"attempts": list(attempts)})
            connection.execute(_UNREGISTER, {"attempts": list(attempts)})

    def _remove_others(
        self, connection: psycopg.Connection[Any], attempts: Sequence[int], batch: Batch
    ) -> None:
        """What attempts that lost a race, and drivers that were killed, have left behind."""
        values = {
            "sink": batch.sink,
            "batch": batch.number,
            "seconds": self._options.staging_seconds,
        }
        left = {attempt for (attempt,) in connection.execute(_LEFT, values)} - set(attempts)
        if left:
            connection.execute(_REMOVE, {"attempts": list(left)})

    @contextmanager
    def _connection(self, what: str) -> Iterator[psycopg.Connection[Any]]:
        """A transaction on a connection of its own: committed at the end, rolled back on an exception."""
        dsn = self._options.dsn
        try:
            with psycopg.connect(dsn, connect_timeout=10) as connection:
                yield connection
        except psycopg.Error as error:
            raise StoreUnavailableError(f"{what} on {redact(dsn)}: {redact(str(error)).strip()}") from error


def _csv(attempt: int, columns: Sequence[pa.Array]) -> memoryview:
    attempts = pa.repeat(pa.scalar(attempt, pa.int64()), len(columns[0]))
    buffer = BytesIO()
    csv.write_csv(pa.record_batch([attempts, *columns], names=["attempt", *COLUMNS]), buffer, _CSV)
    return buffer.getbuffer()


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

_COPY = f"COPY conquiet_spark_staging (attempt, {', '.join(COLUMNS)}) FROM STDIN (FORMAT csv)"

_LOCK = "SELECT pg_advisory_xact_lock(hashtextextended('conquiet_spark_batches ' || %(sink)s, 0))"

# The journal decides in the same statement whether the batch is new.
_PUBLISH = """
WITH expired AS (
    DELETE FROM conquiet_spark_batches
    WHERE published_at < clock_timestamp() - %(journal_seconds)s * interval '1 second' AND sink <> %(sink)s
), journal AS (
    INSERT INTO conquiet_spark_batches AS known (sink, batch, published_at)
    VALUES (%(sink)s, %(batch)s, clock_timestamp())
    ON CONFLICT (sink) DO UPDATE SET batch = excluded.batch, published_at = excluded.published_at
    WHERE known.batch < excluded.batch
    RETURNING batch
), clock AS MATERIALIZED (
    SELECT clock_timestamp() AS now, pg_notify('conquiet_jobs', %(queue)s)
), staged AS (
    DELETE FROM conquiet_spark_staging WHERE attempt = ANY(%(attempts)s::bigint[])
    RETURNING id, payload, priority, delay_seconds AS delay, correlation_id
), added AS (
    INSERT INTO conquiet_jobs (id, queue, payload, priority, state, max_retries, waiting, retry_at, enqueued_at,
        correlation_id)
    SELECT id, %(queue)s, payload, priority, 'Ready', %(max_retries)s, delay > 0,
        CASE WHEN delay > 0 THEN clock.now + delay * interval '1 second' END, clock.now, correlation_id
    FROM journal, clock, staged
    ON CONFLICT DO NOTHING
)
SELECT (SELECT count(*) FROM staged), (SELECT count(*) FROM journal)
"""

_LEFT = """
DELETE FROM conquiet_spark_attempts
WHERE (sink = %(sink)s AND batch <= %(batch)s) OR staged_at < clock_timestamp() - %(seconds)s * interval '1 second'
RETURNING attempt
"""

_REMOVE = "DELETE FROM conquiet_spark_staging WHERE attempt = ANY(%(attempts)s::bigint[])"

_UNREGISTER = "DELETE FROM conquiet_spark_attempts WHERE attempt = ANY(%(attempts)s::bigint[])"
