"""Finds the rows that cannot be judged, by the rules of the intake, and keeps them with the reason."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from conquiet.reconcile import MAX_CLAIM, MAX_NAME, METRIC_NAMES
from conquiet.reconcile.spark.inputs import ENQUEUED_AT, METRICS, ORIGIN, REPORTS

__all__ = ["REASON", "checked_metrics", "checked_reports", "quarantined"]

REASON = "reason"
_MAX_ATTEMPT = 2**31 - 1
# In microseconds: Java's Julian calendar would shift a literal time this old.
_FIRST_MOMENT = (datetime(1, 1, 2, tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(
    microseconds=1
)


def checked_reports(reports: DataFrame, as_of: datetime | None = None) -> DataFrame:
    """Add a column `reason`, which is null for valid reports. A report submitted after `as_of`, if given, or after it was
    enqueued, is not valid.
    """
    latest = f.lit(as_of).cast("timestamp")
    if ENQUEUED_AT in reports.columns:
        latest = f.least(latest, f.col(ENQUEUED_AT))  # ignores nulls
    reasons = [
        _malformed(reports),
        f.when(f.col("report_id").isNull(), "report_id is missing"),
        *(reason for name in ("affiliate_id", "platform", "post_id") for reason in _name_reasons(name)),
        *(_claim_reason(f"claimed_{name}") for name in METRIC_NAMES),
        *_time_reasons("submitted_at"),
        f.when(
            f.col("submitted_at") > latest,
            f.concat(
                f.lit("submitted_at is "), _shown("submitted_at"), f.lit(", after "), latest.cast("string")
            ),
        ),
        f.when(
            ~f.col("attempt").between(1, _MAX_ATTEMPT),
            _not(f"attempt must be a whole number from 1 to {_MAX_ATTEMPT}", "attempt"),
        ),
    ]
    return reports.withColumn(REASON, _first(reasons))


def checked_metrics(metrics: DataFrame) -> DataFrame:
    """Add a column `reason`, which is null for valid rows."""
    reasons = [
        _malformed(metrics),
        *(reason for name in ("platform", "post_id") for reason in _name_reasons(name)),
        *(f.when(f.col(name) < 0, _not(_whole(name), name)) for name in METRIC_NAMES),
        *_time_reasons("observed_at"),
    ]
    return metrics.withColumn(REASON, _first(reasons))


def quarantined(checked: DataFrame, source: str) -> DataFrame:
    """Return the rows with a reason: their source and position, their raw text, and the reason.

    For a DataFrame that does not come from `read_reports` or `read_metrics`, positions are null and the source is `source`.
    """
    columns = [name for name in (*REPORTS, *METRICS) if name in checked.columns]
    whole_row = f.to_json(f.struct(*dict.fromkeys(columns)))
    known = ORIGIN in checked.columns
    return checked.where(f.col(REASON).isNotNull()).select(
        (f.col(f"{ORIGIN}.source") if known else f.lit(source)).alias("source"),
        (f.col(f"{ORIGIN}.position") if known else f.lit(None).cast("string")).alias("position"),
        (f.coalesce(f.col(f"{ORIGIN}.raw"), whole_row) if known else whole_row).alias("raw"),
        REASON,
    )


def _first(reasons: Sequence[Column]) -> Column:
    return f.coalesce(*reasons)


def _malformed(rows: DataFrame) -> Column:
    """Return the reader's reason for rows that could not be parsed into columns."""
    return f.col(f"{ORIGIN}.malformed") if ORIGIN in rows.columns else f.lit(None).cast("string")


def _name_reasons(name: str) -> list[Column]:
    value = f.col(name)
    first = f.ascii(value)
    # A text that begins with a visible ASCII character is not blank, so the slow pattern runs on few rows.
    is_blank = ((first <= 32) | (first >= 127)) & value.rlike(r"(?U)\A[\s\x1c-\x1f]*\z")
    return [
        f.when(value.isNull(), f"{name} is missing"),
        f.when(is_blank, f"{name} must be a text that is not empty"),
        f.when(
            f.length(value) > MAX_NAME,
            f.concat(
                f.lit(f"{name} has "),
                f.length(value).cast("string"),
                f.lit(f" characters, more than {MAX_NAME}"),
            ),
        ),
        f.when(f.contains(value, f.lit("\0")), f"{name} holds NUL"),
    ]


def _claim_reason(name: str) -> Column:
    return f.when(f.col(name).isNull(), f"{name} is missing").when(f.col(name) < 0, _not(_whole(name), name))


def _time_reasons(name: str) -> list[Column]:
    return [
        f.when(f.col(name).isNull(), f"{name} is missing"),
        f.when(f.unix_micros(name) < _FIRST_MOMENT, f"{name} is before the year 1"),
    ]


def _whole(name: str) -> str:
    return f"{name} must be a whole number from 0 to {MAX_CLAIM}"


def _not(rule: str, name: str) -> Column:
    return f.concat(f.lit(f"{rule}, not "), _shown(name))


def _shown(name: str) -> Column:
    return f.substring(f.col(name).cast("string"), 1, 60)
