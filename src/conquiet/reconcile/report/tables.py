"""Tables about the results of reconciliation, in native Spark SQL: outcome rates, trust over time, quarantine reasons.

Each function takes an output of `reconcile_batch` (or one that `reconcile_stream` wrote) and returns a lazy DataFrame
with documented columns and types. Counts and sums are integers, so they do not depend on the order of
rows; a rate is a single division of two of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as f
from pyspark.sql.types import DataType, IntegralType, StringType, TimestampType
from pyspark.sql.window import WindowSpec

from conquiet.errors import ReconcileConfigError
from conquiet.reconcile import DEFAULT_RULES, Rules, Status
from conquiet.reconcile.spark import ReconcileOutputs
from conquiet.spark.folders import exists

__all__ = [
    "MEAN_TRUST",
    "OUTCOMES",
    "QUARANTINE_REASONS",
    "TRUST_BY_DAY",
    "having_columns",
    "mean_trust_by_day",
    "outcome_rates",
    "quarantine_reasons",
    "read_outputs",
    "stated",
    "trust_by_day",
]

_KEYS: Final = ("affiliate_id", "platform")
_SECONDS_PER_DAY: Final = 86_400

# Columns and their types. The grouping columns precede those of OUTCOMES.
OUTCOMES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "reports": "bigint",
        "judged_again": "bigint",  # reports whose newest verdict is not from the first attempt
        "pending": "bigint",  # reports whose newest verdict will be followed by another attempt
        **{status.value.lower(): "bigint" for status in Status},
        **{f"{status.value.lower()}_rate": "double" for status in Status},
    }
)
TRUST_BY_DAY: Final[Mapping[str, str]] = MappingProxyType(
    {
        "day": "date",
        "affiliate_id": "string",
        "events": "bigint",
        "delta_hundredths": "bigint",
        "score_hundredths": "bigint",
    }
)
MEAN_TRUST: Final[Mapping[str, str]] = MappingProxyType(
    {
        "day": "date",
        "events": "bigint",
        "affiliates": "bigint",
        "below_start": "bigint",
        "mean_score": "double",
    }
)
QUARANTINE_REASONS: Final[Mapping[str, str]] = MappingProxyType({"reason": "string", "rows": "bigint"})


def read_outputs(spark: SparkSession, output: str) -> ReconcileOutputs:
    """Read the tables that `reconcile_stream` wrote to `output`, or any Parquet in `output/<table>`."""
    root = output.rstrip("/")
    for table in ReconcileOutputs._fields:
        if not exists(spark, f"{root}/{table}"):
            raise ReconcileConfigError(
                f"there is no table {table} in {output}: give the folder that reconcile_stream writes to, after its first "
                f"micro-batch, or write outputs.{table} to {root}/{table} as Parquet"
            )
    return ReconcileOutputs(*(spark.read.parquet(f"{root}/{table}") for table in ReconcileOutputs._fields))


def outcome_rates(verdicts: DataFrame, *by: str) -> DataFrame:
    """Count outcomes `by` affiliate_id, platform or both (the default), with the columns of OUTCOMES.

    A report counts once, by the verdict of its newest attempt: "missing" and later "matched" counts as matched.
    """
    keys = by or _KEYS
    if set(keys) - set(_KEYS) or len(set(keys)) != len(keys):
        raise ReconcileConfigError(
            f"outcome rates are grouped by affiliate_id, by platform or by both, not by {', '.join(keys)}"
        )
    columns: dict[str, type[DataType]] = dict.fromkeys((*_KEYS, "status"), StringType)
    columns |= {"report_id": IntegralType, "attempt": IntegralType, "scheduled_retry_at": TimestampType}
    rows = having_columns(verdicts, columns, "verdicts")
    newest_first = Window.partitionBy("report_id").orderBy(f.desc("attempt"))
    newest = rows.withColumn("_row", f.row_number().over(newest_first)).where("_row = 1")
    counts = newest.groupBy(*keys).agg(
        f.count("*").alias("reports"),
        f.count_if(f.col("attempt") > 1).alias("judged_again"),
        f.count("scheduled_retry_at").alias("pending"),
        *(f.count_if(f.col("status") == status.value).alias(status.value.lower()) for status in Status),
    )
    rates = {f"{name}_rate": f.col(name) / f.col("reports") for name in (s.value.lower() for s in Status)}
    return stated(counts.withColumns(rates), {**dict.fromkeys(keys, "string"), **OUTCOMES})


def trust_by_day(trust: DataFrame, rules: Rules = DEFAULT_RULES) -> DataFrame:
    """Return each affiliate's trust at the end of each day (UTC) on which it changed: the columns of TRUST_BY_DAY."""
    rows = having_columns(
        trust,
        {"affiliate_id": StringType, "delta_hundredths": IntegralType, "recorded_at": TimestampType},
        "trust",
    )
    days = rows.groupBy("affiliate_id", _day("recorded_at").alias("day")).agg(
        f.count("*").alias("events"), f.sum("delta_hundredths").alias("delta_hundredths")
    )
    so_far = f.sum("delta_hundredths").over(_days_of_affiliate().rowsBetween(Window.unboundedPreceding, 0))
    score = f.greatest(
        f.least(f.lit(rules.trust.start) + so_far, f.lit(rules.trust.highest)), f.lit(rules.trust.lowest)
    )
    return stated(days.withColumn("score_hundredths", score), TRUST_BY_DAY)


def mean_trust_by_day(by_day: DataFrame, rules: Rules = DEFAULT_RULES) -> DataFrame:
    """Return the mean score of all affiliates known by the end of each day, from `trust_by_day`: columns of MEAN_TRUST.

    An affiliate keeps its score on days without an event. Only changes are summed, so such days need no rows.
    """
    score, start = f.col("score_hundredths"), f.lit(rules.trust.start)
    before = f.lag("score_hundredths").over(_days_of_affiliate())
    changes = by_day.select(
        "day",
        "events",
        before.isNull().cast("bigint").alias("affiliates"),
        (score - f.coalesce(before, f.lit(0))).alias("sum"),
        ((score < start).cast("bigint") - f.coalesce((before < start).cast("bigint"), f.lit(0))).alias(
            "below_start"
        ),
    )
    per_day = changes.groupBy("day").agg(
        *(f.sum(name).alias(name) for name in ("events", "affiliates", "sum", "below_start"))
    )
    # One row per day is little enough for one task. (Spark warns about a window without a key.)
    until_then = Window.partitionBy(f.pmod(f.unix_date("day"), f.lit(1))).orderBy("day")
    until_then = until_then.rowsBetween(Window.unboundedPreceding, 0)
    total = {name: f.sum(name).over(until_then) for name in ("affiliates", "sum", "below_start")}
    mean = f.col("sum") / f.col("affiliates") / f.lit(100.0)
    return stated(per_day.withColumns(total).withColumn("mean_score", mean), MEAN_TRUST)


def quarantine_reasons(quarantine: DataFrame) -> DataFrame:
    """Count quarantined rows by reason, ignoring the values in it, with the columns of QUARANTINE_REASONS."""
    rows = having_columns(quarantine, {"reason": StringType}, "quarantine")
    kind = f.col("reason")
    for pattern, replacement in (
        (r"(?s)^(.*?), not .*$", "$1"),  # the value that was found
        (r"(?s)^(submitted_at) is .*, after .*$", "$1 is after the moment of judgement"),
        (r"^(\w+) has \d+ characters, more than (\d+)$", "$1 has more than $2 characters"),
    ):
        kind = f.regexp_replace(kind, pattern, replacement)
    return stated(rows.groupBy(kind.alias("reason")).agg(f.count("*").alias("rows")), QUARANTINE_REASONS)


def stated(rows: DataFrame, columns: Mapping[str, str]) -> DataFrame:
    """Return `rows` with exactly these columns and types."""
    return rows.select(*(f.col(name).cast(kind).alias(name) for name, kind in columns.items()))


def having_columns(rows: DataFrame, columns: Mapping[str, type[DataType]], table: str) -> DataFrame:
    """Return these columns of `rows`. The error names the first one that is missing or has another type."""
    found = {field.name: field.dataType for field in rows.schema.fields}
    for name, kind in columns.items():
        if name not in found:
            raise ReconcileConfigError(f"{table} has no column {name}; it has: {', '.join(found)}")
        if not isinstance(found[name], kind):
            wanted = {IntegralType: "a whole number", StringType: "string", TimestampType: "timestamp"}[kind]
            raise ReconcileConfigError(
                f"the column {name} of {table} must be {wanted}, not {found[name].simpleString()}: cast it"
            )
    return rows.select(*columns)


def _days_of_affiliate() -> WindowSpec:
    return Window.partitionBy("affiliate_id").orderBy("day")


def _day(moment: str) -> Column:
    """Return the day in UTC, independent of the session time zone."""
    seconds = f.unix_seconds(f.col(moment))
    into_day = f.pmod(seconds, f.lit(_SECONDS_PER_DAY))
    return f.date_from_unix_date(((seconds - into_day) / f.lit(_SECONDS_PER_DAY)).cast("int"))
