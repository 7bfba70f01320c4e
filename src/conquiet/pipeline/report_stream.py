"""Reconciliation as reports arrive: from a queue to tables of verdicts, trust, alerts, retries and quarantine.

A micro-batch is judged once. What came out is put aside in one folder, which counts from the moment it is complete;
tables and retry jobs are made from that folder. A batch that is replayed finds it and does the rest again, to the same
folders and with the same job ids, so that nothing changes and nothing is there twice. The numbers of a later hour
cannot make a half-finished batch contradict itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.storagelevel import StorageLevel

from conquiet.pipeline.inputs import ENQUEUED_AT, REPORTS, json_rows
from conquiet.pipeline.reconcile import ReconcileOutputs, judged_reports, moment_of, outputs_of
from conquiet.reconcile.rules import DEFAULT_RULES, Rules

__all__ = ["RetryJobs", "reconcile_stream"]

_JUDGED_AT = "judged_at"
_TO_THE_MICROSECOND = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"}


@dataclass(frozen=True)
class RetryJobs:
    """Where further attempts wait: a queue of the job store at `dsn`."""

    dsn: str
    queue: str = "reconciliation"


def reconcile_stream(
    entries: DataFrame,
    metrics: DataFrame | Callable[[], DataFrame],
    output: str,
    checkpoint: str,
    *,
    retry_jobs: RetryJobs | None = None,
    rules: Rules = DEFAULT_RULES,
    as_of: Callable[[], datetime] | None = None,
    remember: str = "7 days",
    trigger: dict[str, Any] | None = None,
) -> StreamingQuery:
    """Start a query that judges the reports in `entries`, a stream of `format("conquiet")`.

    `metrics` is the table of what platforms say; a function is called for each micro-batch, to look again. Tables go to
    `output/<table>/day=…/batch=…` as Parquet. With `retry_jobs` further attempts become delayed jobs, whose ids are
    those of `JobStoreQueue`. A (report_id, attempt) that comes again within `remember` is not judged again. `trigger` is
    Spark's: `{"availableNow": True}` for what is there now.
    """
    parsed = json_rows(
        entries,
        REPORTS,
        text=f.col("data"),
        source=f.lit("queue"),
        position=f.col("id"),
        keep=("id", ENQUEUED_AT),
    )
    # An entry without a key of its own is like no other.
    attempt = f.concat_ws("/", f.col("report_id"), f.coalesce("attempt", f.lit(1)))
    is_known = f.col("report_id").isNotNull() & f.col("_origin.malformed").isNull()
    keyed = parsed.withColumn(
        "_key", f.when(is_known, attempt).otherwise(f.concat(f.lit("entry "), f.col("id")))
    )
    once = keyed.withWatermark(ENQUEUED_AT, remember).dropDuplicatesWithinWatermark(["_key"])
    batches = _Batches(metrics, output.rstrip("/"), checkpoint.rstrip("/"), retry_jobs, rules, as_of)
    writer = once.writeStream.foreachBatch(batches.write).option("checkpointLocation", checkpoint)
    return writer.trigger(**(trigger or {"processingTime": "0 seconds"})).start()


@dataclass
class _Batches:
    """What is done with each micro-batch."""

    metrics: DataFrame | Callable[[], DataFrame]
    output: str
    checkpoint: str
    retry_jobs: RetryJobs | None
    rules: Rules
    as_of: Callable[[], datetime] | None

    def write(self, rows: DataFrame, number: int) -> None:
        spark = rows.sparkSession
        query = _query_id(spark, self.checkpoint)
        aside = f"{self.output}/_aside/{query}-{number}"
        _remove(spark, f"{self.output}/_aside/{query}-{number - 1}")  # it is in the commit log by now
        if _exists(spark, f"{aside}/judged/_SUCCESS"):
            rows.write.format("noop").mode(
                "overwrite"
            ).save()  # Spark's memory of duplicates must still see them
        else:
            self._judge(rows, aside)
        judged, bad = (spark.read.parquet(f"{aside}/{name}") for name in ("judged", "quarantine"))
        moments = judged.select(_JUDGED_AT).limit(1).union(bad.select(_JUDGED_AT).limit(1))
        if (row := moments.agg(f.unix_micros(f.min(_JUDGED_AT))).first()) is None or row[0] is None:
            return  # no rows
        moment = _from_micros(row[0])
        outputs = outputs_of(judged, bad.drop(_JUDGED_AT), moment)
        for table, frame in outputs._asdict().items():
            folder = f"{self.output}/{table}/day={moment.date()}/batch={query[:8]}-{number}"
            frame.write.mode("overwrite").parquet(folder)
        if self.retry_jobs is not None:
            _write_jobs(outputs, self.retry_jobs, f"reconcile-{query}", number)

    def _judge(self, rows: DataFrame, aside: str) -> None:
        moment = moment_of(self.as_of() if self.as_of else None)
        metrics = self.metrics() if callable(self.metrics) else self.metrics
        rows.persist(
            StorageLevel.MEMORY_AND_DISK
        )  # read twice, and what is remembered must be looked up once
        try:
            found = judged_reports(rows, metrics, self.rules, moment, unique_reports=True)
            for name, frame in (("quarantine", found.bad_reports), ("judged", found.rows)):
                frame.withColumn(_JUDGED_AT, f.lit(moment)).write.mode("overwrite").parquet(f"{aside}/{name}")
        finally:
            rows.unpersist()


def _write_jobs(outputs: ReconcileOutputs, to: RetryJobs, sink: str, number: int) -> None:
    """Jobs as `ReconciliationJob` reads them, with the whole report beside: whoever works on them needs no table."""
    retries = outputs.retries
    due_in = (f.unix_micros("scheduled_retry_at") - f.unix_micros(f.current_timestamp())) / f.lit(1_000_000.0)
    payload = f.struct(
        f.col("report_id").alias("affiliate_report_id"),
        f.col("scheduled_retry_at").alias("scheduled_at"),
        *(name for name in REPORTS if name != "report_id"),
    )
    jobs = retries.select(
        f.concat(f.lit("report-"), f.col("report_id"), f.lit("-attempt-"), f.col("attempt")).alias("id"),
        f.to_json(payload, _TO_THE_MICROSECOND).alias("payload"),
        f.greatest(due_in, f.lit(0.0)).alias("delay_seconds"),
    )
    options = {"dsn": to.dsn, "queue": to.queue, "sinkId": sink, "batchId": str(number)}
    jobs.write.format("conquiet").mode("append").options(**options).save()


def _query_id(spark: SparkSession, checkpoint: str) -> str:
    """It lives in the checkpoint: without that the same number is another batch, and must not replace this one."""
    row = spark.read.text(f"{checkpoint}/metadata").first()
    assert row is not None
    return str(json.loads(row[0])["id"])


def _from_micros(micros: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)


def _exists(spark: SparkSession, path: str) -> bool:
    files, where = _files(spark, path)
    return bool(files.exists(where))


def _remove(spark: SparkSession, path: str) -> None:
    files, where = _files(spark, path)
    files.delete(where, True)


def _files(spark: SparkSession, path: str) -> tuple[Any, Any]:
    """Hadoop's file system of a path, which may be a local folder or a bucket."""
    context: Any = spark.sparkContext
    where = context._jvm.org.apache.hadoop.fs.Path(path)
    return where.getFileSystem(context._jsc.hadoopConfiguration()), where
