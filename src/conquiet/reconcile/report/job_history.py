"""Waiting and processing times of jobs from the history of a job store, in native Spark SQL."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as f
from pyspark.sql.types import DataType, IntegralType, StringType, TimestampType

from conquiet.checks import MAX_INT, checked_int
from conquiet.errors import JobConfigError
from conquiet.jobs import Job, JobStore
from conquiet.reconcile.report.tables import having_columns, stated
from conquiet.spark.folders import exists

__all__ = [
    "ATTEMPTS",
    "ATTEMPT_OUTCOMES",
    "FIRST_WAIT",
    "JOB_TIMES",
    "PERCENTS",
    "PROCESSING",
    "RETRY_WAIT",
    "attempt_outcomes",
    "job_attempts",
    "job_times",
]

FIRST_WAIT: Final = "first_wait"
RETRY_WAIT: Final = "retry_wait"
PROCESSING: Final = "processing"
PERCENTS: Final = (50, 90, 99)

ATTEMPTS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "job_id": "string",
        "queue": "string",
        "number": "bigint",
        "enqueued_at": "timestamp",
        "started_at": "timestamp",
        "ended_at": "timestamp",
        "outcome": "string",
    }
)
JOB_TIMES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "queue": "string",
        "measure": "string",
        "attempts": "bigint",
        "p50": "double",
        "p90": "double",
        "p99": "double",
        "max": "double",
    }
)
ATTEMPT_OUTCOMES: Final[Mapping[str, str]] = MappingProxyType(
    {"queue": "string", "outcome": "string", "attempts": "bigint"}
)

_AT_ONCE: Final = 50_000  # attempts per write; makes the fixed cost of a Spark write negligible
_HANDLED: Final = (
    "succeeded",
    "failed",
)  # the duration of an attempt that was released or lost its lease is not a processing time
_ARROW: Final = {"string": pa.string(), "bigint": pa.int64(), "timestamp": pa.timestamp("us", "UTC")}
_Row = tuple[Any, ...]  # in the order of ATTEMPTS


def job_attempts(
    spark: SparkSession, store: JobStore, folder: str, *, queue: str | None = None, page: int = 5_000
) -> DataFrame:
    """Write the finished attempts of all jobs in `store` (or in `queue`) as Parquet to `folder`, which must not exist.

    Memory use is bounded by `page` jobs with their payloads and 50,000 attempts: choose a smaller
    page for large payloads. The store may be in use meanwhile: no job is skipped because others are added or removed.
    """
    checked_int("page", page, 1, MAX_INT, error=JobConfigError)
    if exists(spark, folder):
        raise JobConfigError(
            f"{folder} exists: give a folder that does not exist; the attempts are written to it"
        )
    for rows in _chunks(store, queue, page):
        spark.createDataFrame(_table(rows)).write.mode("append").parquet(folder)
    return stated(spark.read.parquet(folder), ATTEMPTS).distinct()


def job_times(attempts: DataFrame) -> DataFrame:
    """Return exact percentiles (nearest rank) in seconds per queue and measure, with the columns of JOB_TIMES.

    first_wait  from `enqueued_at` to the start of the first attempt, including a requested delay
    retry_wait  from the end of an attempt to the start of the next, including the delay of the retry
    processing  from the start to the end of an attempt that succeeded or failed

    One Spark task sorts all values of a queue and measure. The sort spills to disk when memory is short, so
    they need not fit in memory.
    """
    rows = _checked(attempts)
    # An id can be reused after its job is pruned. `enqueued_at` separates the two jobs.
    before = f.lag("ended_at").over(Window.partitionBy("job_id", "enqueued_at").orderBy("number"))
    spans = (
        _span(FIRST_WAIT, "enqueued_at", "started_at", f.col("_before").isNull()),
        _span(RETRY_WAIT, "_before", "started_at", f.col("_before").isNotNull()),
        _span(PROCESSING, "started_at", "ended_at", f.col("outcome").isin(*_HANDLED)),
    )
    every_span = f.explode(f.array_compact(f.array(*spans))).alias("span")
    values = rows.withColumn("_before", before).select("queue", every_span)
    values = values.select("queue", "span.measure", "span.micros")
    group = Window.partitionBy("queue", "measure")
    place = {"place": f.row_number().over(group.orderBy("micros")), "attempts": f.count("*").over(group)}
    # The rank is ceil(percent / 100 * attempts), in integer arithmetic to avoid rounding errors.
    ranks = {f"p{percent}": f.expr(f"(attempts * {percent} + 99) div 100") for percent in PERCENTS}
    ranked = values.withColumns(place).withColumns(ranks).withColumn("max", f.col("attempts"))
    chosen = [
        (f.max(f.when(f.col("place") == f.col(name), f.col("micros"))) / f.lit(1e6)).alias(name)
        for name in (*ranks, "max")
    ]
    times = ranked.groupBy("queue", "measure").agg(f.max("attempts").alias("attempts"), *chosen)
    return stated(times, JOB_TIMES)


def attempt_outcomes(attempts: DataFrame) -> DataFrame:
    """Count attempts by queue and outcome, with the columns of ATTEMPT_OUTCOMES."""
    counts = _checked(attempts).groupBy("queue", "outcome").agg(f.count("*").alias("attempts"))
    return stated(counts, ATTEMPT_OUTCOMES)


def _chunks(store: JobStore, queue: str | None, page: int) -> Iterator[list[_Row]]:
    """Yield lists of attempts. There is always at least one list; the first may be empty."""
    rows: list[_Row] = []
    is_first = True
    found = store.list(queue=queue, limit=page, newest_first=True)  # what is added meanwhile is not read
    while found:
        for job in found:
            rows += _rows_of(job)
        if len(rows) >= _AT_ONCE:
            yield rows
            rows, is_first = [], False
        if found.next is None:
            break
        found = store.list(queue=queue, limit=page, newest_first=True, after=found.next)
    if rows or is_first:
        yield rows


def _rows_of(job: Job) -> list[_Row]:
    return [
        (job.id, job.queue, one.number, job.enqueued_at, one.started_at, one.ended_at, one.outcome)
        for one in job.attempts
    ]


def _table(rows: list[_Row]) -> pa.Table:
    schema = pa.schema([(name, _ARROW[kind]) for name, kind in ATTEMPTS.items()])
    if not rows:
        return schema.empty_table()
    columns = zip(*rows, strict=True)
    return pa.table(
        [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema
    )


def _checked(attempts: DataFrame) -> DataFrame:
    kinds: dict[str, type[DataType]] = {
        "string": StringType,
        "bigint": IntegralType,
        "timestamp": TimestampType,
    }
    return having_columns(attempts, {name: kinds[kind] for name, kind in ATTEMPTS.items()}, "attempts")


def _span(measure: str, start: str, end: str, condition: Column) -> Column:
    micros = f.unix_micros(f.col(end)) - f.unix_micros(f.col(start))
    return f.when(condition, f.struct(f.lit(measure).alias("measure"), micros.alias("micros")))
