"""Reconciliation in bulk: judges every report in native Spark SQL, by the rules of the per-job path.

reports ── checked ──┬── once each ──┐
                     │               ├── joined ── judged ──┬── verdicts, trust, alerts, retries
metrics ── checked ──┼── newest ─────┘
                     └── quarantine
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import NamedTuple

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f

from conquiet.errors import ReconcileConfigError
from conquiet.reconcile import DEFAULT_RULES, METRIC_NAMES, Rules
from conquiet.reconcile.spark.inputs import METRICS, REPORTS, checked_columns
from conquiet.reconcile.spark.quarantine import checked_metrics, checked_reports, quarantined
from conquiet.reconcile.spark.verdicts import BARRIER, judged

__all__ = [
    "Judged",
    "JudgedOutputs",
    "ReconcileOutputs",
    "judged_reports",
    "moment_of",
    "outputs_of",
    "reconcile_batch",
]

_POST = ["platform", "post_id"]
_ATTEMPT = ["report_id", "attempt"]


class ReconcileOutputs(NamedTuple):
    """The outputs as DataFrames. Each is computed separately when used; `save_outputs` computes them together.

    verdicts    one per (report_id, attempt)
    trust       the changes of trust, in whole hundredths: at most one per (report_id, attempt)
    alerts      at most one per (report_id, status)
    retries     reports to be judged again at `scheduled_retry_at`, with the number of that attempt
    quarantine  rows that could not be judged, and why
    """

    verdicts: DataFrame
    trust: DataFrame
    alerts: DataFrame
    retries: DataFrame
    quarantine: DataFrame


class JudgedOutputs(ReconcileOutputs):
    """The outputs with the judged rows they are selected from, so that the rows can be computed once."""

    rows: DataFrame
    as_of: datetime

    @property
    def alerts_of_attempts(self) -> DataFrame:
        """The alerts of every attempt, not only the first of each (report_id, status) as in `alerts`."""
        return _having(self.rows, "alert").select(
            "report_id",
            "status",
            "attempt",
            f.col("alert.kind").alias("kind"),
            f.col("alert.severity").alias("severity"),
            f.lit(self.as_of).alias("raised_at"),
        )


class Judged(NamedTuple):
    """A row for each judged report, and the rows that could not be judged."""

    rows: DataFrame
    bad_reports: DataFrame
    bad_metrics: DataFrame


def reconcile_batch(
    reports: DataFrame,
    metrics: DataFrame,
    rules: Rules = DEFAULT_RULES,
    as_of: datetime | None = None,
    *,
    unique_reports: bool = False,
) -> ReconcileOutputs:
    """Judge `reports` by the newest `metrics` of each post at or before `as_of` (by default now).

    The same inputs and the same `as_of` give the same outputs. `as_of` is also the time of the attempts: retries are
    scheduled from it, and a report submitted after it is invalid. Rows with the same (report_id, attempt) are judged
    once; `unique_reports` asserts that there are none, which saves a shuffle and a sort.
    """
    moment = moment_of(as_of)
    found = judged_reports(reports, metrics, rules, moment, unique_reports=unique_reports)
    return outputs_of(found.rows, found.bad_reports.unionByName(found.bad_metrics), moment)


def judged_reports(
    reports: DataFrame, metrics: DataFrame, rules: Rules, as_of: datetime, *, unique_reports: bool = False
) -> Judged:
    """Check and judge the rows; `outputs_of` selects the outputs."""
    all_reports = checked_reports(checked_columns(reports, REPORTS, "reports"), as_of)
    all_metrics = checked_metrics(checked_columns(metrics, METRICS, "metrics"))
    good_reports = all_reports.where(f.col("reason").isNull()).select(*REPORTS)
    good_metrics = all_metrics.where(f.col("reason").isNull()).select(*METRICS)
    if not unique_reports:
        good_reports = _once_each(good_reports)
    # A hash join: a sort-merge join would have to sort both sides.
    newest = _newest(good_metrics, as_of).hint("shuffle_hash")
    return Judged(
        judged(good_reports.join(newest, _POST, "left"), rules, as_of),
        quarantined(all_reports, "reports"),
        quarantined(all_metrics, "metrics"),
    )


def outputs_of(rows: DataFrame, quarantine: DataFrame, as_of: datetime) -> JudgedOutputs:
    """Select the outputs from the judged reports."""
    now = f.lit(as_of)
    verdicts = rows.select(
        "report_id",
        "affiliate_id",
        "platform",
        "attempt",
        "status",
        "level",
        "max_diff",
        "confidence",
        "trust_event",
        "trust_delta",
        "missing_fields",
        "scheduled_retry_at",
    )
    trust = _having(rows, "trust_event").select(
        "report_id",
        "attempt",
        "affiliate_id",
        f.col("trust_event").alias("event"),
        f.col("trust_delta").alias("delta_hundredths"),
        now.alias("recorded_at"),
    )
    first_alert = f.min(f.struct("attempt", "alert")).alias("first")
    alerts = _having(rows, "alert").groupBy("report_id", "status").agg(first_alert)
    retries = _having(rows, "scheduled_retry_at").withColumn("attempt", f.col("attempt") + 1)
    outputs = JudgedOutputs(
        verdicts,
        trust,
        alerts.select(
            "report_id",
            "status",
            f.col("first.attempt").alias("attempt"),
            f.col("first.alert.kind").alias("kind"),
            f.col("first.alert.severity").alias("severity"),
            now.alias("raised_at"),
        ),
        retries.select(*REPORTS, "scheduled_retry_at"),
        quarantine,
    )
    outputs.rows, outputs.as_of = rows, as_of
    return outputs


def _having(rows: DataFrame, column: str) -> DataFrame:
    return rows.where(f.col(column).isNotNull() & (f.col(BARRIER) >= 0))


def moment_of(as_of: datetime | None) -> datetime:
    """Return `as_of`, or the current time, in UTC."""
    if as_of is None:
        return datetime.now(UTC)
    if as_of.tzinfo is None:
        raise ReconcileConfigError("as_of needs a zone: datetime(2026, 1, 31, tzinfo=UTC)")
    return as_of.astimezone(UTC)


def _once_each(reports: DataFrame) -> DataFrame:
    """Keep one row for each (report_id, attempt). If rows differ, the earliest wins, independent of input order."""
    others = [name for name in REPORTS if name not in (*_ATTEMPT, "submitted_at")]
    order = Window.partitionBy(*_ATTEMPT).orderBy("submitted_at", *others)
    # Not row_number: Spark would sort before the shuffle, too, which pays only if most rows are duplicates.
    before = f.lag("report_id").over(order)
    return reports.withColumn("_before", before).where(f.col("_before").isNull()).drop("_before")


def _newest(metrics: DataFrame, as_of: datetime) -> DataFrame:
    """Return the last observation of each post. Rows with the same time are one observation with the largest of their
    numbers, independent of input order. Aggregates numbers, not structs, which Spark's hash aggregate does not support.
    """
    known = metrics.where(f.col("observed_at") <= f.lit(as_of)).repartition(
        *_POST
    )  # every step uses this partitioning
    moments = known.groupBy(*_POST, "observed_at").agg(*(f.max(name).alias(name) for name in METRIC_NAMES))
    latest = (f.max_by(name, "observed_at").alias(name) for name in METRIC_NAMES)
    return moments.groupBy(*_POST).agg(*latest, f.max("observed_at").alias("observed_at"))
