"""Reconciliation as reports arrive: from a queue to tables of verdicts, trust, alerts, retries and quarantine.

A micro-batch is judged once. The judged rows are written to a separate folder (`_aside`), which is valid once it is
complete; tables and retry jobs are made from it. A replayed batch finds the folder and repeats the rest, with the same
output folders and job ids, so nothing changes and nothing is duplicated, even if the metrics have changed in the
meantime.

What must happen once across micro-batches is remembered in the checkpoint: (report_id, attempt) as Spark's own state,
alerts in an `AlertMemory`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.storagelevel import StorageLevel

from conquiet.reconcile import DEFAULT_RULES, Rules
from conquiet.reconcile.spark.alert_memory import AlertMemory
from conquiet.reconcile.spark.batch import ReconcileOutputs, judged_reports, moment_of, outputs_of
from conquiet.reconcile.spark.counts import CountedOutputs
from conquiet.reconcile.spark.inputs import ENQUEUED_AT, REPORTS, json_rows
from conquiet.reconcile.spark.outputs.parquet import write_table
from conquiet.reconcile.spark.quarantine import REASON, checked_reports
from conquiet.reconcile.spark.retry_jobs import RetryJobs, write_retry_jobs
from conquiet.spark.folders import is_complete, remove
from conquiet.spark.progress import BATCH_COUNTS, CountedFrame

__all__ = ["reconcile_stream"]

_JUDGED_AT = "judged_at"
_SEEN_AT = "_seen_at"  # by this time a report is forgotten


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
    name: str | None = None,
) -> StreamingQuery:
    """Start a query that judges the reports in `entries`, a stream of `format("conquiet")`.

    `metrics` is the table of platform metrics, or a function that returns it and is called for each micro-batch. Tables
    are written to `output/<table>/day=…/batch=…` as Parquet. With `retry_jobs`, further attempts become delayed jobs
    with the ids of `JobStoreQueue`. A (report_id, attempt) that arrives again within `remember` is not judged again, and
    an alert for the same report and status is not raised again. `trigger` is Spark's: `{"availableNow": True}` processes
    what is available and stops. `name` identifies the query in progress and metrics.
    """
    parsed = json_rows(
        entries,
        REPORTS,
        text=f.col("data"),
        source=f.lit("queue"),
        position=f.col("id"),
        keep=("id", ENQUEUED_AT),
    )
    timed = _keyed(parsed).withColumn(_SEEN_AT, _seen_at())
    once = timed.withWatermark(_SEEN_AT, remember).dropDuplicatesWithinWatermark(["_key"]).drop(_SEEN_AT)
    memory = AlertMemory(f"{checkpoint.rstrip('/')}/alerted", remember)
    batches = _Batches(metrics, output.rstrip("/"), checkpoint.rstrip("/"), memory, retry_jobs, rules, as_of)
    writer = once.writeStream.foreachBatch(batches.write).option("checkpointLocation", checkpoint)
    if name is not None:
        writer = writer.queryName(name)
    return writer.trigger(**(trigger or {"processingTime": "0 seconds"})).start()


def _seen_at() -> Column:
    """Return the time of an entry, and at most a day from now (the time of the micro-batch, the same in a replay).

    A producer may choose an id far in the future or without a time. It would make Spark forget all reports, or remember
    none after it. Later entries are never earlier by this time, so that none is dropped as late.
    """
    return f.least(ENQUEUED_AT, f.current_timestamp() + f.expr("INTERVAL 1 DAY"))  # ignores nulls


def _keyed(parsed: DataFrame) -> DataFrame:
    """Add the deduplication key. Quarantined entries have unique keys, so that they do not suppress valid ones."""
    attempt = f.concat_ws("/", f.col("report_id"), f.coalesce("attempt", f.lit(1)))
    entry = f.concat(f.lit("entry "), f.col("id"))
    checked = checked_reports(parsed)
    return checked.withColumn("_key", f.when(f.col(REASON).isNull(), attempt).otherwise(entry)).drop(REASON)


class _Aside(NamedTuple):
    """The judged rows of a micro-batch, read back from its folder."""

    judged: DataFrame
    bad: DataFrame
    moment: datetime
    judged_rows: int


@dataclass
class _Batches:
    """Writes each micro-batch."""

    metrics: DataFrame | Callable[[], DataFrame]
    output: str
    checkpoint: str
    memory: AlertMemory
    retry_jobs: RetryJobs | None
    rules: Rules
    as_of: Callable[[], datetime] | None
    query: str = ""

    def write(self, rows: DataFrame, number: int) -> None:
        spark = rows.sparkSession
        self.query = query = self.query or _query_id(spark, self.checkpoint)
        aside = f"{self.output}/_aside/{query}-{number}"
        remove(spark, f"{self.output}/_aside/{query}-{number - 1}")  # Spark's commit log has it by now
        if is_complete(spark, f"{aside}/judged"):
            # Spark's deduplication must still process the rows.
            rows.write.format("noop").mode("overwrite").save()
            found = _recalled(spark, aside)
        else:
            found = self._judge(rows, aside)
        if found is None:
            return  # no rows
        outputs = outputs_of(found.judged, found.bad.drop(_JUDGED_AT), found.moment)
        alerts = self.memory.unraised(outputs.alerts, number, found.moment, at_most=found.judged_rows)
        counted = CountedOutputs(ReconcileOutputs(**(outputs._asdict() | {"alerts": alerts})))
        written = {}
        for table, frame in counted.tables._asdict().items():
            folder = write_table(frame, self.output, table, found.moment, f"{query[:8]}-{number}")
            written[table] = spark.read.schema(frame.schema).parquet(folder)
        self.memory.add(written["alerts"], number, found.moment)
        if self.retry_jobs is not None:
            write_retry_jobs(written["retries"], self.retry_jobs, f"reconcile-{query}", number)
        BATCH_COUNTS.put(query, number, counted.counts())

    def _judge(self, rows: DataFrame, aside: str) -> _Aside | None:
        moment = moment_of(self.as_of() if self.as_of else None)
        metrics = self.metrics() if callable(self.metrics) else self.metrics
        # Read twice, but deduplicated only once.
        rows.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            found = judged_reports(rows, metrics, self.rules, moment, unique_reports=True)
            bad, judged = (
                CountedFrame(frame.withColumn(_JUDGED_AT, f.lit(moment)))
                for frame in (found.bad_reports, found.rows)
            )
            for name, frame in (("quarantine", bad.rows), ("judged", judged.rows)):
                frame.write.mode("overwrite").parquet(f"{aside}/{name}")
        finally:
            rows.unpersist()
        bad_rows, judged_rows = bad.count(), judged.count()
        if bad_rows is None or judged_rows is None:  # Spark did not report them
            return _recalled(rows.sparkSession, aside)
        if bad_rows == judged_rows == 0:
            return None
        read = rows.sparkSession.read
        return _Aside(
            read.schema(judged.rows.schema).parquet(f"{aside}/judged"),
            read.schema(bad.rows.schema).parquet(f"{aside}/quarantine"),
            moment,
            judged_rows,
        )


def _recalled(spark: SparkSession, aside: str) -> _Aside | None:
    """Return the judged rows of an earlier run of this batch, or None."""
    judged, bad = (spark.read.parquet(f"{aside}/{name}") for name in ("judged", "quarantine"))
    moments = judged.select(_JUDGED_AT).limit(1).union(bad.select(_JUDGED_AT).limit(1))
    micros = moments.agg(f.unix_micros(f.min(_JUDGED_AT))).collect()[0][0]
    return None if micros is None else _Aside(judged, bad, _from_micros(micros), judged.count())


def _query_id(spark: SparkSession, checkpoint: str) -> str:
    """Return the query id from the checkpoint. With another checkpoint, the same batch number is another batch."""
    row = spark.read.text(f"{checkpoint}/metadata").first()
    assert row is not None
    return str(json.loads(row[0])["id"])


def _from_micros(micros: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)
