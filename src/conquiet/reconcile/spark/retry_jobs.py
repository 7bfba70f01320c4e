"""Enqueues further attempts as delayed jobs in a job store, for workers of the per-job path."""

from __future__ import annotations

from dataclasses import dataclass, field

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from conquiet.reconcile import JOB_ID
from conquiet.reconcile.spark.inputs import REPORTS

__all__ = ["RetryJobs", "retry_jobs", "write_retry_jobs"]

_TO_THE_MICROSECOND = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"}


@dataclass(frozen=True)
class RetryJobs:
    """The queue for further attempts, in the job store at `dsn`."""

    dsn: str = field(repr=False)
    queue: str = "reconciliation"


def write_retry_jobs(retries: DataFrame, to: RetryJobs, sink: str, number: int) -> None:
    """Enqueue a job for each row of the table `retries`. Batch `number` of `sink` adds its jobs once."""
    options = {"dsn": to.dsn, "queue": to.queue, "sinkId": sink, "batchId": str(number)}
    retry_jobs(retries).write.format("conquiet").mode("append").options(**options).save()


def retry_jobs(retries: DataFrame) -> DataFrame:
    """Return the rows that `format("conquiet")` writes. The payload is a `ReconciliationJob` with the whole report in it,
    so that the worker needs no table of reports.
    """
    due_in = (f.unix_micros("scheduled_retry_at") - f.unix_micros(f.current_timestamp())) / f.lit(1_000_000.0)
    payload = f.struct(
        f.col("report_id").alias("affiliate_report_id"),
        f.col("scheduled_retry_at").alias("scheduled_at"),
        *(name for name in REPORTS if name != "report_id"),
    )
    return retries.select(
        f.format_string(JOB_ID, f.col("report_id"), f.col("attempt")).alias("id"),
        f.to_json(payload, _TO_THE_MICROSECOND).alias("payload"),
        f.greatest(due_in, f.lit(0.0)).alias("delay_seconds"),
    )
