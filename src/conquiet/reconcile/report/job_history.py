"""How long jobs waited and how long they took, from the history of a job store, in native Spark SQL."""

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
from conquiet.jobs import Job, JobStore, QueueStats
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

_AT_ONCE: Final = 50_000  # attempts per write: the fixed cost of a write in Spark is then negligible
_HANDLED: Final = (
    "succeeded",
    "failed",
)  # an attempt that was released or lost its lease does not show how long the work takes
_ARROW: Final = {"string": pa.string(), "bigint": pa.int64(), "timestamp": pa.timestamp("us", "UTC")}
_Row = tuple[Any, ...]  # in the order of ATTEMPTS


def job_attempts(
    spark: SparkSession, store: JobStore, folder: str, *, queue: str | None = None, page: int = 5_000
) -> DataFrame:
    """The finished attempts of all jobs that `store` has (of `queue`), as Parquet in `folder`, which must be new.

    Memory holds `page` jobs with their payloads and up to 50,000 attempts, however many there are: choose a smaller
    page for large payloads. The store may be in use meanwhile: jobs that are removed or added hide no others.
    """
    checked_int("page", page, 1, MAX_INT, error=JobConfigError)
    if exists(spark, folder):
        raise JobConfigError(f"{folder} exists: give a folder that does not, the attempts are written there")
    for rows in _chunks(store, queue, page):
        spark.createDataFrame(_table(rows)).write.mode("append").parquet(folder)
    return stated(spark.read.parquet(folder), ATTEMPTS).distinct()


def job_times(attempts: DataFrame) -> DataFrame:
    """Percentiles in seconds, per queue and measure: the columns of JOB_TIMES. They are exact, by nearest rank.

    first_wait  from `enqueued_at` to the first attempt; a delay that was asked for is part of it
    retry_wait  from the end of an attempt to the start of the next; the delay of the retry is part of it
    processing  from the start to the end of an attempt that a handler finished: it succeeded or failed

    The values of a queue and a measure are sorted by one task. Spark's sorts go to disk when memory is short, so that
    it need not hold them.
    """
    rows = _checked(attempts)
    # An id may be used again after its job was pruned: that is another job, enqueued at another time.
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
    # Place number ceil(percent / 100 * attempts), in whole numbers: no rounding decides which value it is.
    ranks = {f"p{percent}": f.expr(f"(attempts * {percent} + 99) div 100") for percent in PERCENTS}
    ranked = values.withColumns(place).withColumns(ranks).withColumn("max", f.col("attempts"))
    chosen = [
        (f.max(f.when(f.col("place") == f.col(name), f.col("micros"))) / f.lit(1e6)).alias(name)
        for name in (*ranks, "max")
    ]
    times = ranked.groupBy("queue", "measure").agg(f.max("attempts").alias("attempts"), *chosen)
    return stated(times, JOB_TIMES)


def attempt_outcomes(attempts: DataFrame) -> DataFrame:
    """The number of attempts by queue and outcome: the columns of ATTEMPT_OUTCOMES."""
    counts = _checked(attempts).groupBy("queue", "outcome").agg(f.count("*").alias("attempts"))
    return stated(counts, ATTEMPT_OUTCOMES)


def _chunks(store: JobStore, queue: str | None, page: int) -> Iterator[list[_Row]]:
    """Attempts, many at once; the first list may be empty, so that there is always one.

    Pages are read from the last job to the first. A job that is removed meanwhile moves those after it, which have
    been read, to places that are still to be read: something comes twice, but nothing is skipped.
    """
    rows: list[_Row] = []
    is_first = True
    end = sum(_jobs_of(stats) for stats in store.stats(queue).values())
    while end > 0:
        start = max(0, end - page)
        for job in store.list(queue=queue, limit=end - start, offset=start):
            rows += _rows_of(job)
        end = start
        if len(rows) >= _AT_ONCE:
            yield rows
            rows, is_first = [], False
    if rows or is_first:
        yield rows


def _jobs_of(stats: QueueStats) -> int:
    return stats.ready + stats.delayed + stats.in_flight + stats.expired + stats.failed + stats.succeeded


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
