"""Judges reports in Spark SQL: the computation of `conquiet.reconcile.verdict`, operation by operation, in the JVM.

All numbers are doubles, all literals are typed, and the order of operations is that in the docstring of `verdict.py`, so
the results are identical to the bit.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import ArrayType, DoubleType, StringType

from conquiet.reconcile import LEVELS, METRIC_NAMES, TRUST_EVENTS, Level, Rules, Status

__all__ = ["BARRIER", "judged"]

BARRIER = "_barrier"

_MICROSECONDS_PER_HOUR = 3_600_000_000.0
_DIFFS = tuple(f"diff_{name}" for name in METRIC_NAMES)


def judged(cases: DataFrame, rules: Rules, as_of: datetime) -> DataFrame:
    """Add to each case its verdict, trust, next attempt and alert.

    A case is a report (`claimed_…`, `submitted_at`, `attempt`) and its observation (`views`, `clicks`, `conversions`,
    `observed_at`), which is null if nothing was observed. The columns of the observation are dropped. An expression that
    is used twice gets its own column, because Spark would otherwise compute it twice.

    A filter on the result must also use the column `_barrier`, as in `_barrier >= 0`, which is always true: otherwise
    Spark moves the filter below all steps and expands every step in it as often as it is used.
    """
    steps = cases.withColumn("allowance", _allowance(rules))
    steps = steps.withColumns({f"diff_{name}": _diff(name) for name in METRIC_NAMES})
    steps = steps.withColumns({"max_diff": _largest_of_them(), "most_above": f.greatest(*_DIFFS)})
    steps = steps.withColumns({"status": _status(rules), "missing_fields": _missing_fields()})
    steps = steps.withColumns(
        {
            "level": _level(rules),
            "confidence": _confidence(),
            "trust_event": _by_status({status: event.value for status, event in TRUST_EVENTS.items()}),
            "trust_delta": _trust_delta(rules),
            "scheduled_retry_at": _retry_at(rules, as_of),
        }
    )
    steps = steps.withColumns({"alert": _alert(rules), BARRIER: f.spark_partition_id()})
    return steps.drop("allowance", "most_above", *_DIFFS, *METRIC_NAMES, "observed_at")


def _allowance(rules: Rules) -> Column:
    elapsed = (f.unix_micros("observed_at") - f.unix_micros("submitted_at")).cast(DoubleType())
    hours = f.greatest(elapsed / f.lit(_MICROSECONDS_PER_HOUR), f.lit(0.0))
    return f.lit(1.0) + f.lit(float(rules.growth_per_hour)) * f.least(
        f.lit(float(rules.growth_cap_hours)), hours
    )


def _diff(metric: str) -> Column:
    """Return the difference of a metric, null if nothing was observed."""
    claim, observed = f.col(f"claimed_{metric}").cast(DoubleType()), f.col(metric).cast(DoubleType())
    upper, lower = observed * f.col("allowance"), observed / f.col("allowance")
    return (
        f.when(observed.isNull(), f.lit(None).cast(DoubleType()))
        .when(claim > upper, (claim - upper) / f.greatest(upper, f.lit(1.0)))
        .when(claim < lower, (claim - lower) / f.greatest(lower, f.lit(1.0)))
        .otherwise(f.lit(0.0))
    )


def _largest_of_them() -> Column:
    return f.greatest(*(f.abs(f.col(name)) for name in _DIFFS))  # ignores nulls


def _observed() -> Column:
    """Count how many of the three numbers the platform gave."""
    one, two, three = (f.when(f.col(name).isNull(), 0).otherwise(1) for name in METRIC_NAMES)
    return one + two + three


def _status(rules: Rules) -> Column:
    observed, max_diff = _observed(), f.col("max_diff")
    return (
        f.when(observed == 0, Status.MISSING_PLATFORM_DATA.value)
        .when(observed < len(METRIC_NAMES), Status.INCOMPLETE_PLATFORM_DATA.value)
        .when(f.col("most_above") >= f.lit(float(rules.overclaimed_from)), Status.AFFILIATE_OVERCLAIMED.value)
        .when(max_diff <= f.lit(float(rules.matched_up_to)), Status.MATCHED.value)
        .when(max_diff <= f.lit(float(rules.low_up_to)), Status.DISCREPANCY_LOW.value)
        .when(max_diff <= f.lit(float(rules.medium_up_to)), Status.DISCREPANCY_MEDIUM.value)
        .otherwise(Status.DISCREPANCY_HIGH.value)
    )


def _missing_fields() -> Column:
    """Return the names of missing metrics, in order. In the usual case, with none missing, no array is built."""
    names = f.array_compact(f.array(*(f.when(f.col(name).isNull(), f.lit(name)) for name in METRIC_NAMES)))
    none_missing = f.lit([]).cast(ArrayType(StringType()))
    return f.when(_observed() == len(METRIC_NAMES), none_missing).otherwise(names)


def _level(rules: Rules) -> Column:
    is_critical = (f.col("status") == Status.AFFILIATE_OVERCLAIMED.value) & (
        f.col("most_above") >= f.lit(float(rules.critical_from))
    )
    usual = _by_status({status: level.value for status, level in LEVELS.items()})
    return f.when(is_critical, Level.CRITICAL.value).otherwise(usual)


def _confidence() -> Column:
    return _observed().cast(DoubleType()) / f.lit(float(len(METRIC_NAMES)))


def _trust_delta(rules: Rules) -> Column:
    deltas = rules.trust.deltas
    return _by_status({status: deltas[event] for status, event in TRUST_EVENTS.items()})


def _by_status(values: dict[Status, str] | dict[Status, int]) -> Column:
    """Map the status to its value; null for a status without one."""
    chosen: Column | None = None
    for status, value in values.items():
        condition = f.col("status") == status.value
        chosen = f.when(condition, value) if chosen is None else chosen.when(condition, value)
    assert chosen is not None
    return chosen


def _retry_at(rules: Rules, as_of: datetime) -> Column:
    """Compute `verdict.retry_at` in whole microseconds; the attempt is made at `as_of`."""
    chosen = f.when(f.lit(False), f.lit(0).cast("bigint"))
    for rule in rules.retries:
        delay = f.lit(_microseconds(timedelta(seconds=rule.delay_seconds))).cast("bigint")
        if rule.growing:
            delay = delay * f.col("attempt").cast("bigint")
        next_at = f.unix_micros(f.lit(as_of)) + delay
        is_made = (f.col("status") == rule.status.value) & (f.col("attempt") < rule.max_attempts)
        if rule.within_seconds is not None:
            within = f.lit(_microseconds(timedelta(seconds=rule.within_seconds))).cast("bigint")
            is_made = is_made & (next_at <= f.unix_micros("submitted_at") + within)
        chosen = chosen.when(is_made, next_at)
    return f.timestamp_micros(chosen)


def _microseconds(span: timedelta) -> int:
    return span // timedelta(microseconds=1)


def _alert(rules: Rules) -> Column:
    """Return a struct of kind and severity by the first matching rule; null if none matches."""
    chosen = f.when(f.lit(False), _alert_of("", ""))
    for rule in rules.alerts:
        fits = f.col("status") == rule.status.value
        if rule.level is not None:
            fits = fits & f.col("level").eqNullSafe(rule.level.value)
        if rule.only_without_retry:
            fits = fits & f.col("scheduled_retry_at").isNull()
        chosen = chosen.when(fits, _alert_of(rule.kind, rule.severity))
    return chosen


def _alert_of(kind: str, severity: str) -> Column:
    return f.struct(f.lit(kind).alias("kind"), f.lit(severity).alias("severity"))
