"""The figures that a report shows, as plain data: made by `collect_figures` or by hand, without Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime

from conquiet.jobs import QueueStats
from conquiet.reconcile import Status

__all__ = [
    "AlertCount",
    "DayTrust",
    "JobFigures",
    "Outcomes",
    "ReportFigures",
    "TimesRow",
    "TrustLine",
]


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Outcomes of the reports of an affiliate, of a platform or overall. `score` is the affiliate's trust, if known."""

    name: str
    reports: int
    by_status: Mapping[Status, int] = field(default_factory=dict)
    score: float | None = None

    def share(self, status: Status) -> float:
        return self.by_status.get(status, 0) / self.reports if self.reports else 0.0


@dataclass(frozen=True, slots=True)
class DayTrust:
    """All affiliates at the end of a day: how many are known, how many are below their initial score, the mean."""

    day: date
    affiliates: int
    below_start: int
    mean_score: float


@dataclass(frozen=True, slots=True)
class TrustLine:
    """One affiliate's score at the end of each day on which it changed, oldest first. `start` is its initial score."""

    affiliate_id: str
    start: float
    days: tuple[tuple[date, float], ...]


@dataclass(frozen=True, slots=True)
class AlertCount:
    kind: str
    severity: str
    count: int


@dataclass(frozen=True, slots=True)
class TimesRow:
    """Percentiles in seconds. `job_times` defines the measures."""

    queue: str
    measure: str
    attempts: int
    p50: float
    p90: float
    p99: float
    max: float


@dataclass(frozen=True, slots=True)
class JobFigures:
    """Job history. A part that was not given is empty."""

    times: tuple[TimesRow, ...] = ()
    outcomes: Mapping[str, int] = field(default_factory=dict)  # number of attempts by outcome
    queues: tuple[QueueStats, ...] = ()  # `store.stats()`


@dataclass(frozen=True, slots=True)
class ReportFigures:
    """Everything in a report. A part that is None or empty is shown as missing.

    `platforms` and `affiliates` are those worth showing, most relevant first; `other_platforms` sums up the rest.
    `lost` counts queue entries that were deleted before they were read. Only the source knows it, not the outputs.
    """

    total: Outcomes
    title: str = "Reconciliation"
    made_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    affiliates_in_all: int = 0
    platforms_in_all: int = 0
    judged_again: int = 0
    pending: int = 0
    retries: int = 0
    lost: int | None = None
    platforms: tuple[Outcomes, ...] = ()
    other_platforms: Outcomes | None = None
    affiliates: tuple[Outcomes, ...] = ()
    trust_days: tuple[DayTrust, ...] = ()
    trust_lines: tuple[TrustLine, ...] = ()
    alerts: tuple[AlertCount, ...] = ()
    quarantine: int = 0
    quarantine_reasons: tuple[tuple[str, int], ...] = ()
    jobs: JobFigures | None = None
