"""The single declaration of how reports are judged: thresholds, trust, retries, alerts, risk, rates.

Plain immutable data without callables, so that every path can compile it into its own language: `verdict.py` uses it
in Python, the Spark pipeline turns it into SQL expressions. Change rules with `dataclasses.replace(DEFAULT_RULES, …)`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from conquiet.checks import MAX_SECONDS
from conquiet.errors import ReconcileConfigError

__all__ = [
    "DEFAULT_RULES",
    "LEVELS",
    "MAX_CLAIM",
    "METRIC_NAMES",
    "TRUST_EVENTS",
    "AlertRule",
    "IntakeRules",
    "Level",
    "RetryRule",
    "RiskRules",
    "Rules",
    "Status",
    "TrustEvent",
    "TrustRules",
]

METRIC_NAMES: Final = ("views", "clicks", "conversions")
MAX_CLAIM: Final = 2**63 - 1  # the maximum of a BIGINT, in both databases and in Spark


class Status(StrEnum):
    """The verdict on a report."""

    MATCHED = "MATCHED"
    DISCREPANCY_LOW = "DISCREPANCY_LOW"
    DISCREPANCY_MEDIUM = "DISCREPANCY_MEDIUM"
    DISCREPANCY_HIGH = "DISCREPANCY_HIGH"
    AFFILIATE_OVERCLAIMED = "AFFILIATE_OVERCLAIMED"
    INCOMPLETE_PLATFORM_DATA = "INCOMPLETE_PLATFORM_DATA"
    MISSING_PLATFORM_DATA = "MISSING_PLATFORM_DATA"


class Level(StrEnum):
    """How severe a discrepancy is. Reports without one (matched, missing, incomplete) have no level."""

    LOW = "LOW"
    MEDIUM = "MEDIUM"
    HIGH = "HIGH"
    CRITICAL = "CRITICAL"


class TrustEvent(StrEnum):
    PERFECT_MATCH = "PERFECT_MATCH"
    MINOR_DISCREPANCY = "MINOR_DISCREPANCY"
    MEDIUM_DISCREPANCY = "MEDIUM_DISCREPANCY"
    HIGH_DISCREPANCY = "HIGH_DISCREPANCY"
    OVERCLAIM = "OVERCLAIM"


# An overclaim is CRITICAL from `Rules.critical_from`. Statuses not listed here have no level.
LEVELS: Final[Mapping[Status, Level]] = MappingProxyType(
    {
        Status.DISCREPANCY_LOW: Level.LOW,
        Status.DISCREPANCY_MEDIUM: Level.MEDIUM,
        Status.DISCREPANCY_HIGH: Level.HIGH,
        Status.AFFILIATE_OVERCLAIMED: Level.HIGH,
    }
)
TRUST_EVENTS: Final[Mapping[Status, TrustEvent]] = MappingProxyType(
    {
        Status.MATCHED: TrustEvent.PERFECT_MATCH,
        Status.DISCREPANCY_LOW: TrustEvent.MINOR_DISCREPANCY,
        Status.DISCREPANCY_MEDIUM: TrustEvent.MEDIUM_DISCREPANCY,
        Status.DISCREPANCY_HIGH: TrustEvent.HIGH_DISCREPANCY,
        Status.AFFILIATE_OVERCLAIMED: TrustEvent.OVERCLAIM,
    }
)


def _number(name: str, value: object, at_least: float) -> None:
    fits = isinstance(value, int | float) and not isinstance(value, bool) and at_least <= value < math.inf
    if not fits:
        raise ReconcileConfigError(f"{name} must be a number of at least {at_least:g}, not {value!r}")


def _whole(name: str, value: object, at_least: int, at_most: int) -> None:
    if type(value) is not int or not at_least <= value <= at_most:
        raise ReconcileConfigError(f"{name} must be an int from {at_least} to {at_most}, not {value!r}")


def _member(name: str, value: object, kind: type[StrEnum]) -> None:
    if not isinstance(value, kind):
        raise ReconcileConfigError(f"{name} must be a {kind.__name__}, not {value!r}")


@dataclass(frozen=True, slots=True)
class TrustRules:
    """Changes of an affiliate's trust, in whole hundredths, so that their sums are exact in any order."""

    perfect_match: int = 1
    minor_discrepancy: int = -1
    medium_discrepancy: int = -3
    high_discrepancy: int = -5
    overclaim: int = -10
    start: int = 50
    lowest: int = 0
    highest: int = 100

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            _whole(f"TrustRules.{name}", getattr(self, name), -1_000_000, 1_000_000)
        if not self.lowest <= self.start <= self.highest:
            raise ReconcileConfigError(
                f"TrustRules.start must be between lowest and highest: {self.lowest}, {self.start}, {self.highest}"
            )

    @property
    def deltas(self) -> dict[TrustEvent, int]:
        return {event: getattr(self, event.value.lower()) for event in TrustEvent}


@dataclass(frozen=True, slots=True)
class RetryRule:
    """After an attempt ends in `status`, another follows after `delay_seconds` (times its number, if `growing`).

    None follows attempt number `max_attempts`, or if it would be later than `within_seconds` after submission. With
    `own_attempts`, only attempts that ended in `status` count for `max_attempts`, where it is known how the earlier ones ended.
    """

    status: Status
    delay_seconds: float
    growing: bool
    max_attempts: int
    within_seconds: float | None = None
    own_attempts: bool = False

    def __post_init__(self) -> None:
        _member("RetryRule.status", self.status, Status)
        _number("RetryRule.delay_seconds", self.delay_seconds, 0)
        _whole("RetryRule.max_attempts", self.max_attempts, 1, 1000)
        if self.within_seconds is not None:
            _number("RetryRule.within_seconds", self.within_seconds, 0)


@dataclass(frozen=True, slots=True)
class AlertRule:
    """An attempt that ends in `status` (and in `level`, if given) raises an alert. The first matching rule applies."""

    status: Status
    kind: str
    severity: str
    level: Level | None = None
    only_without_retry: bool = False

    def __post_init__(self) -> None:
        _member("AlertRule.status", self.status, Status)
        if self.level is not None:
            _member("AlertRule.level", self.level, Level)
        if not (self.kind and self.severity):
            raise ReconcileConfigError("AlertRule.kind and .severity must not be empty")


@dataclass(frozen=True, slots=True)
class RiskRules:
    """Defines claims that are suspicious by themselves. Reports with such claims are judged first."""

    clicks_per_view_above: float = 0.35
    min_views: int = 100
    conversions_per_click_above: float = 0.60
    min_clicks: int = 20
    suspicious_priority: str = "high"
    usual_priority: str = "normal"

    def __post_init__(self) -> None:
        _number("RiskRules.clicks_per_view_above", self.clicks_per_view_above, 0)
        _number("RiskRules.conversions_per_click_above", self.conversions_per_click_above, 0)
        # At least 1: they are divisors.
        _whole("RiskRules.min_views", self.min_views, 1, MAX_CLAIM)
        _whole("RiskRules.min_clicks", self.min_clicks, 1, MAX_CLAIM)


@dataclass(frozen=True, slots=True)
class IntakeRules:
    """How many reports one affiliate may submit, and how long those of an affiliate with little trust wait.

    The first attempt at a report of an affiliate whose score is below `low_trust_below` is made
    `low_trust_delay_seconds` after submission; 0 means at once, like all others.

    A report that says that it was submitted more than `max_age_seconds` ago is refused: tolerance grows and retries end with the
    age of a report, and the affiliate must not choose these. None accepts every age, for example for a backfill.
    """

    per_minute: float = 60.0
    burst: int = 20
    low_trust_below: float = 0.30
    low_trust_delay_seconds: float = 0.0
    max_age_seconds: float | None = 3_600.0

    def __post_init__(self) -> None:
        _number("IntakeRules.low_trust_below", self.low_trust_below, 0)
        if self.low_trust_below > 1:
            raise ReconcileConfigError(
                f"IntakeRules.low_trust_below must be a score from 0 to 1, not {self.low_trust_below!r}"
            )
        _number("IntakeRules.low_trust_delay_seconds", self.low_trust_delay_seconds, 0)
        if self.low_trust_delay_seconds > MAX_SECONDS:
            raise ReconcileConfigError("IntakeRules.low_trust_delay_seconds must be at most a century")
        if self.max_age_seconds is not None:
            _number("IntakeRules.max_age_seconds", self.max_age_seconds, 0)
        _number("IntakeRules.per_minute", self.per_minute, 0)
        if self.per_minute == 0:
            raise ReconcileConfigError("IntakeRules.per_minute must be above 0")
        _whole("IntakeRules.burst", self.burst, 1, 1_000_000)


_RETRIES = (
    RetryRule(Status.MISSING_PLATFORM_DATA, 30 * 60.0, growing=True, max_attempts=5, within_seconds=86_400.0),
    RetryRule(Status.INCOMPLETE_PLATFORM_DATA, 15 * 60.0, growing=False, max_attempts=2, own_attempts=True),
)
_ALERTS = (
    AlertRule(Status.AFFILIATE_OVERCLAIMED, "fraud", "critical", level=Level.CRITICAL),
    AlertRule(Status.AFFILIATE_OVERCLAIMED, "fraud", "high"),
    AlertRule(Status.DISCREPANCY_HIGH, "data_quality", "medium"),
    AlertRule(Status.MISSING_PLATFORM_DATA, "system_health", "medium", only_without_retry=True),
)


@dataclass(frozen=True, slots=True)
class Rules:
    """All settings. Shares are fractions: 0.05 is 5 %."""

    growth_per_hour: float = (
        0.01  # how much a post may have grown, or the platform may lag, per hour since submission
    )
    growth_cap_hours: float = 24.0
    matched_up_to: float = 0.05
    low_up_to: float = 0.10
    medium_up_to: float = 0.20
    overclaimed_from: float = 0.20
    critical_from: float = 0.50
    trust: TrustRules = field(default_factory=TrustRules)
    retries: tuple[RetryRule, ...] = _RETRIES
    alerts: tuple[AlertRule, ...] = _ALERTS
    risk: RiskRules = field(default_factory=RiskRules)
    intake: IntakeRules = field(default_factory=IntakeRules)

    def __post_init__(self) -> None:
        for name in ("growth_per_hour", "growth_cap_hours", "matched_up_to", "overclaimed_from"):
            _number(f"Rules.{name}", getattr(self, name), 0)
        for smaller, larger in (
            ("matched_up_to", "low_up_to"),
            ("low_up_to", "medium_up_to"),
            ("overclaimed_from", "critical_from"),
        ):
            _number(f"Rules.{larger}", getattr(self, larger), 0)
            if getattr(self, smaller) > getattr(self, larger):
                raise ReconcileConfigError(f"Rules.{smaller} must not be above Rules.{larger}")
        if self.overclaimed_from == 0:
            raise ReconcileConfigError("Rules.overclaimed_from must be above 0, or every report overclaims")
        for name in ("retries", "alerts"):
            if not isinstance(getattr(self, name), tuple):
                raise ReconcileConfigError(f"Rules.{name} must be a tuple of rules")
        if len({rule.status for rule in self.retries}) != len(self.retries):
            raise ReconcileConfigError("Rules.retries must contain at most one rule per status")


DEFAULT_RULES: Final = Rules()
