"""Collects the figures of a report from Spark tables. The driver receives only as many rows as a page can show."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from datetime import date
from typing import Final, NamedTuple

from pyspark.sql import Column, DataFrame, Row, Window
from pyspark.sql import functions as f
from pyspark.storagelevel import StorageLevel

from conquiet.jobs import QueueStats
from conquiet.reconcile import DEFAULT_RULES, Rules, Status
from conquiet.reconcile.report.figures import (
    AlertCount,
    DayTrust,
    JobFigures,
    Outcomes,
    ReportFigures,
    TimesRow,
    TrustLine,
)
from conquiet.reconcile.report.job_history import JOB_TIMES, attempt_outcomes, job_times
from conquiet.reconcile.report.tables import (
    mean_trust_by_day,
    outcome_rates,
    quarantine_reasons,
    trust_by_day,
)
from conquiet.reconcile.spark import ReconcileOutputs

__all__ = ["collect_figures"]

_PLATFORMS: Final = 10
_AFFILIATES: Final = 12
_FALLEN, _RISEN = 4, 2  # lines of trust: more are not distinguishable
_DAYS: Final = 366
_REASONS: Final = 10
_QUEUES: Final = 6

_STATUSES: Final = {status: status.value.lower() for status in Status}
_COUNTS: Final = ("reports", "judged_again", "pending", *_STATUSES.values())
_NOTHING: Final = Row(**dict.fromkeys(_COUNTS, 0))  # a grouped sum over no verdicts has no row
_BY_AFFILIATE, _BY_PLATFORM, _BY_NOTHING = 0b01, 0b10, 0b11
_CONTESTED: Final = (Status.AFFILIATE_OVERCLAIMED, Status.DISCREPANCY_HIGH)


def collect_figures(
    outputs: ReconcileOutputs,
    *,
    attempts: DataFrame | None = None,
    queues: Mapping[str, QueueStats] | None = None,
    lost: int | None = None,
    rules: Rules = DEFAULT_RULES,
    title: str = "Reconciliation",
) -> ReportFigures:
    """Collect the figures for `write_report`. Each table of `outputs` is read once, and computed if not yet written.

    `attempts` come from `job_attempts`, `queues` from `store.stats()`, and `lost` from the source of the stream.
    """
    found = _found(outputs.verdicts)
    by_day = trust_by_day(outputs.trust, rules).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        days = _trust_days(by_day, rules)
        fallen_or_risen = _fallen_or_risen(by_day) if days else []
        scores = _scores(by_day, {*fallen_or_risen, *(row["affiliate_id"] for row in found.affiliates)})
    finally:
        by_day.unpersist()
    platforms, other_platforms = _platforms(found)
    reasons, in_quarantine = _reasons(outputs.quarantine)
    return ReportFigures(
        total=_outcomes("all", found.total),
        title=title,
        affiliates_in_all=found.affiliates[0]["groups"] if found.affiliates else 0,
        platforms_in_all=found.platforms[0]["groups"] if found.platforms else 0,
        judged_again=found.total["judged_again"],
        pending=found.total["pending"],
        retries=outputs.retries.count(),
        lost=lost,
        platforms=platforms,
        other_platforms=other_platforms,
        affiliates=_worst_affiliates(found, scores),
        trust_days=days,
        trust_lines=tuple(_line(name, scores[name], days[0].day, rules) for name in fallen_or_risen),
        alerts=_alerts(outputs.alerts),
        quarantine=in_quarantine,
        quarantine_reasons=reasons,
        jobs=_jobs(attempts, queues),
    )


class _Found(NamedTuple):
    """Rows of counts: overall, for the platforms with the most reports, and for the worst affiliates, in that order."""

    total: Row
    platforms: list[Row]
    affiliates: list[Row]


def _found(verdicts: DataFrame) -> _Found:
    """Count in one pass over the verdicts. `groups` in a row is the number of platforms or affiliates."""
    contested = sum((f.col(_STATUSES[status]) for status in _CONTESTED), f.lit(0))
    # The grouping id has a bit set for each key that the grouping leaves out.
    sums = (
        outcome_rates(verdicts)
        .groupingSets([[], ["affiliate_id"], ["platform"]], "affiliate_id", "platform")
        .agg(f.grouping_id().alias("grouping"), *(f.sum(name).alias(name) for name in _COUNTS))
        .withColumn("contested", contested)
    )
    by_certainty = f.when(f.col("grouping") == _BY_AFFILIATE, _at_least(f.col("contested"), f.col("reports")))
    group = Window.partitionBy("grouping")
    place = f.row_number().over(
        group.orderBy(by_certainty.desc(), f.desc("reports"), "affiliate_id", "platform")
    )
    rows = (
        sums.withColumns({"place": place, "groups": f.count("*").over(group)})
        .where(f.col("place") <= max(_PLATFORMS, _AFFILIATES))
        .orderBy("place")
        .collect()
    )
    total = next((row for row in rows if row["grouping"] == _BY_NOTHING), _NOTHING)
    platforms = [row for row in rows if row["grouping"] == _BY_PLATFORM]
    affiliates = [row for row in rows if row["grouping"] == _BY_AFFILIATE]
    return _Found(total, platforms[:_PLATFORMS], affiliates[:_AFFILIATES])


def _at_least(part: Column, whole: Column, z: float = 1.96) -> Column:
    """Return the lower bound of Wilson's 95 % interval for the share `part / whole`."""
    share, square = part / whole, z * z
    middle = share + f.lit(square) / (whole * 2)
    margin = f.lit(z) * f.sqrt(share * (1 - share) / whole + f.lit(square) / (whole * whole * 4))
    return (middle - margin) / (1 + f.lit(square) / whole)


def _outcomes(name: str, row: Row, score: float | None = None) -> Outcomes:
    counts = {status: row[column] for status, column in _STATUSES.items()}
    return Outcomes(name, row["reports"], counts, score)


def _platforms(found: _Found) -> tuple[tuple[Outcomes, ...], Outcomes | None]:
    """Return the platforms with the most reports, and the rest as one."""
    shown = tuple(_outcomes(row["platform"], row) for row in found.platforms)
    if not shown or found.platforms[0]["groups"] == len(shown):
        return shown, None
    total = _outcomes("all", found.total)
    rest = {
        status: total.by_status[status] - sum(one.by_status[status] for one in shown) for status in Status
    }
    return shown, Outcomes("all others", total.reports - sum(one.reports for one in shown), rest)


def _worst_affiliates(found: _Found, scores: Mapping[str, list[Row]]) -> tuple[Outcomes, ...]:
    """Order by the lower bound of the contested share: a single bad report proves little."""
    worst = []
    for row in found.affiliates:
        if row["contested"]:
            days = scores.get(row["affiliate_id"])
            score = days[-1]["score_hundredths"] / 100 if days else None
            worst.append(_outcomes(row["affiliate_id"], row, score))
    return tuple(worst)


def _trust_days(by_day: DataFrame, rules: Rules) -> tuple[DayTrust, ...]:
    rows = mean_trust_by_day(by_day, rules).orderBy(f.desc("day")).limit(_DAYS).collect()
    return tuple(
        DayTrust(row["day"], row["affiliates"], row["below_start"], row["mean_score"])
        for row in reversed(rows)
    )


def _fallen_or_risen(by_day: DataFrame) -> list[str]:
    """Return the affiliates whose trust fell the most, largest fall first, then those whose trust rose the most."""
    sums = by_day.groupBy("affiliate_id").agg(f.sum("delta_hundredths").alias("sum"))
    fallen = sums.where("sum < 0").orderBy("sum", "affiliate_id").limit(_FALLEN)
    risen = sums.where("sum > 0").orderBy(f.desc("sum"), "affiliate_id").limit(_RISEN)
    rows = fallen.union(risen).collect()
    first, last = ([row for row in rows if (row["sum"] < 0) is below] for below in (True, False))
    first.sort(key=lambda row: (row["sum"], row["affiliate_id"]))
    last.sort(key=lambda row: (-row["sum"], row["affiliate_id"]))
    return [row["affiliate_id"] for row in (*first, *last)]


def _scores(by_day: DataFrame, affiliates: set[str]) -> dict[str, list[Row]]:
    """Return the days of each of these affiliates, oldest first."""
    days: dict[str, list[Row]] = defaultdict(list)
    for row in by_day.where(f.col("affiliate_id").isin(sorted(affiliates))).orderBy("day").collect():
        days[row["affiliate_id"]].append(row)
    return days


def _line(name: str, rows: list[Row], since: date, rules: Rules) -> TrustLine:
    scores = [(row["day"], row["score_hundredths"] / 100) for row in rows]
    start = next((score for day, score in reversed(scores) if day < since), rules.trust.start / 100)
    return TrustLine(name, start, tuple(one for one in scores if one[0] >= since))


def _alerts(alerts: DataFrame) -> tuple[AlertCount, ...]:
    rows = alerts.groupBy("kind", "severity").count().orderBy(f.desc("count"), "kind", "severity").collect()
    return tuple(AlertCount(row["kind"], row["severity"], row["count"]) for row in rows)


def _reasons(quarantine: DataFrame) -> tuple[tuple[tuple[str, int], ...], int]:
    kinds = quarantine_reasons(quarantine).rollup("reason")
    sums = kinds.agg(f.grouping_id().alias("grouping"), f.sum("rows").alias("rows"))
    rows = sums.orderBy(f.desc("grouping"), f.desc("rows"), "reason").limit(1 + _REASONS).collect()
    total = sum(row["rows"] or 0 for row in rows if row["grouping"])
    shown = [(row["reason"], row["rows"]) for row in rows if not row["grouping"]]
    if rest := total - sum(rows for _, rows in shown):
        shown.append(("all other reasons", rest))
    return tuple(shown), total


def _jobs(attempts: DataFrame | None, queues: Mapping[str, QueueStats] | None) -> JobFigures | None:
    if attempts is None and queues is None:
        return None
    times, outcomes = _times(attempts) if attempts is not None else ((), {})
    return JobFigures(times, outcomes, _largest(queues.values() if queues else ()))


def _times(attempts: DataFrame) -> tuple[tuple[TimesRow, ...], dict[str, int]]:
    outcomes: Counter[str] = Counter()
    busy: Counter[str] = Counter()
    for row in attempt_outcomes(attempts).collect():
        outcomes[row["outcome"]] += row["attempts"]
        busy[row["queue"]] += row["attempts"]
    names = sorted(busy, key=lambda queue: (-busy[queue], queue))[:_QUEUES]
    rows = job_times(attempts.where(f.col("queue").isin(names))).collect()
    rows.sort(key=lambda row: (names.index(row["queue"]), row["measure"]))
    return tuple(TimesRow(*(row[name] for name in JOB_TIMES)) for row in rows), outcomes


def _largest(queues: Iterable[QueueStats]) -> tuple[QueueStats, ...]:
    def unfinished(one: QueueStats) -> int:
        return one.ready + one.delayed + one.in_flight + one.expired + one.failed

    return tuple(sorted(queues, key=lambda one: (-unfinished(one), one.queue))[:_QUEUES])
