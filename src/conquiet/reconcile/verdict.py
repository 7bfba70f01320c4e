"""Applies the rules to one report. Pure and exact functions: the Spark path computes identical bits.

Every number is an IEEE double. These are separate operations in this order, for each metric:

    allowance = 1.0 + growth_per_hour * min(max(elapsed_hours, 0.0), growth_cap_hours)
    claimed, observed     from integer to double (to nearest, ties to even)
    upper = observed * allowance
    lower = observed / allowance
    diff  = (claimed - upper) / max(upper, 1.0)    if claimed > upper
            (claimed - lower) / max(lower, 1.0)    if claimed < lower
            0.0                                    otherwise

and elapsed_hours = double(microseconds from submission to observation) / 3600000000.0. Java's and Spark SQL's doubles
round each of them identically. A sum in another order, a fused multiply-add or a decimal would not. (Spark SQL
parses the literal 0.01 as a decimal: it must be written 0.01D.)
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple, Protocol

from conquiet.reconcile.rules import (
    DEFAULT_RULES,
    LEVELS,
    METRIC_NAMES,
    TRUST_EVENTS,
    AlertRule,
    Level,
    Rules,
    Status,
    TrustEvent,
)

__all__ = [
    "Claims",
    "Metrics",
    "Verdict",
    "alert_for",
    "classify",
    "elapsed_hours",
    "retry_at",
    "risk_priority",
]


class Metrics(NamedTuple):
    """Claimed or observed numbers. None means that the platform did not give this one."""

    views: int | None
    clicks: int | None
    conversions: int | None


class Verdict(NamedTuple):
    """`diffs` are signed shares in the order of `Metrics`, None where nothing was observed.

    `max_diff` is the largest of their absolute values; None if nothing was observed.
    """

    status: Status
    level: Level | None
    diffs: tuple[float | None, float | None, float | None]
    max_diff: float | None
    confidence: float
    trust_event: TrustEvent | None
    missing_fields: tuple[str, ...]


class Claims(Protocol):
    """The part of a report that decides its risk."""

    @property
    def claimed_views(self) -> int: ...
    @property
    def claimed_clicks(self) -> int: ...
    @property
    def claimed_conversions(self) -> int: ...


_MISSING: Final = Verdict(
    Status.MISSING_PLATFORM_DATA, None, (None, None, None), None, 0.0, None, METRIC_NAMES
)


def classify(
    claimed: Metrics, observed: Metrics, elapsed_hours: float, rules: Rules = DEFAULT_RULES
) -> Verdict:
    """Return the verdict on a report. No value of `claimed` may be None; any of `observed` may."""
    elapsed = max(0.0, elapsed_hours)
    cap = rules.growth_cap_hours
    allowance = 1.0 + rules.growth_per_hour * min(cap, elapsed)
    views, clicks, conversions = observed
    if views is None or clicks is None or conversions is None:
        return _incomplete(claimed, observed, allowance)
    diffs = (
        _diff(claimed[0], views, allowance),
        _diff(claimed[1], clicks, allowance),
        _diff(claimed[2], conversions, allowance),
    )
    most_above = max(diffs)
    max_diff = max(most_above, -min(diffs))
    level: Level | None
    if most_above >= rules.overclaimed_from:
        status = Status.AFFILIATE_OVERCLAIMED
        level = Level.CRITICAL if most_above >= rules.critical_from else LEVELS[status]
    else:
        if max_diff <= rules.matched_up_to:
            status = Status.MATCHED
        elif max_diff <= rules.low_up_to:
            status = Status.DISCREPANCY_LOW
        elif max_diff <= rules.medium_up_to:
            status = Status.DISCREPANCY_MEDIUM
        else:
            status = Status.DISCREPANCY_HIGH
        level = LEVELS.get(status)
    return Verdict(status, level, diffs, max_diff, 1.0, TRUST_EVENTS[status], ())


def _incomplete(claimed: Metrics, observed: Metrics, allowance: float) -> Verdict:
    missing = tuple(name for name, value in zip(METRIC_NAMES, observed, strict=True) if value is None)
    if len(missing) == len(METRIC_NAMES):
        return _MISSING
    views, clicks, conversions = (
        None if value is None else _diff(claim, value, allowance)
        for claim, value in zip(claimed, observed, strict=True)
    )
    diffs = (views, clicks, conversions)
    return Verdict(
        status=Status.INCOMPLETE_PLATFORM_DATA,
        level=None,
        diffs=diffs,
        max_diff=max(abs(diff) for diff in diffs if diff is not None),
        confidence=float(len(METRIC_NAMES) - len(missing)) / float(len(METRIC_NAMES)),
        trust_event=None,
        missing_fields=missing,
    )


def _diff(claimed: int | None, observed: int, allowance: float) -> float:
    claim = float(claimed)  # type: ignore[arg-type]  # the intake refuses a report without a claim
    observation = float(observed)
    upper = observation * allowance
    if claim > upper:
        return (claim - upper) / max(1.0, upper)
    lower = observation / allowance
    if claim < lower:
        return (claim - lower) / max(1.0, lower)
    return 0.0


_MICROSECOND: Final = timedelta(microseconds=1)


def elapsed_hours(submitted_at: datetime, observed_at: datetime) -> float:
    """Return the hours from submission to observation, not to "now", so that a replay gives the same verdict."""
    return float((observed_at - submitted_at) // _MICROSECOND) / 3_600_000_000.0


def retry_at(
    status: Status,
    attempt: int,
    submitted_at: datetime,
    attempted_at: datetime,
    rules: Rules = DEFAULT_RULES,
    *,
    wait_seconds: float = 0.0,
    earlier: Sequence[str] | None = None,
) -> datetime | None:
    """Return when attempt number `attempt` (from 1), made at `attempted_at`, is followed by another; None if never.

    `wait_seconds` is what the platform asked for: no attempt follows sooner. `earlier` are the statuses of the earlier attempts
    that are known; the others are taken to be the same as this one.
    """
    for rule in rules.retries:
        if rule.status is status:
            counted = attempt
            if rule.own_attempts and earlier is not None:
                counted -= sum(other != status for other in earlier)
            if counted >= rule.max_attempts:
                return None
            delay = timedelta(seconds=rule.delay_seconds) * (attempt if rule.growing else 1)
            next_at = attempted_at + max(delay, timedelta(seconds=wait_seconds))
            if rule.within_seconds is not None and next_at > submitted_at + timedelta(
                seconds=rule.within_seconds
            ):
                return None
            return next_at
    return None


def alert_for(
    status: Status, level: Level | None, has_retry: bool, rules: Rules = DEFAULT_RULES
) -> AlertRule | None:
    """Return the rule by which an attempt with this outcome raises an alert, or None."""
    for rule in rules.alerts:
        if (
            rule.status is status
            and rule.level in (None, level)
            and not (has_retry and rule.only_without_retry)
        ):
            return rule
    return None


def risk_priority(report: Claims, rules: Rules = DEFAULT_RULES) -> str:
    """Return the priority label of a new report: suspicious claims are judged first."""
    risk = rules.risk
    views, clicks, conversions = report.claimed_views, report.claimed_clicks, report.claimed_conversions
    suspicious = (views >= risk.min_views and float(clicks) / float(views) > risk.clicks_per_view_above) or (
        clicks >= risk.min_clicks and float(conversions) / float(clicks) > risk.conversions_per_click_above
    )
    return risk.suspicious_priority if suspicious else risk.usual_priority
