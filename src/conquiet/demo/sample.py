"""Seeded sample reports whose outcomes are known before they are judged.

Each report is built backwards: the outcome is chosen first, then numbers that lead to it, well away from the
thresholds. Nothing here uses the judging code, so its figures can be checked against this truth.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from conquiet.reconcile import DEFAULT_RULES, METRIC_NAMES, TRUST_EVENTS, Metrics, Status

__all__ = ["PLATFORMS", "Chunk", "Sample", "Truth"]

PLATFORMS: Final = ("clips", "photos", "stories")
_PER_AFFILIATE = 40  # about this many reports: enough for trust to change, too few for it to reach 0 or 1
_DAYS = 28  # the reports are spread over these days in order
_JITTER = timedelta(hours=12)
_CHUNK = 5_000
_DUPLICATES, _BROKEN = 0.02, 0.01  # the shares of reports sent twice and of invalid entries

# Outcomes, as (status, is critical), with the range of the deciding difference: a share above the upper limit of
# the tolerated range, or (negative) below the lower limit.
_MATCHED = (Status.MATCHED, False)
_DIFFERENCES: Final = {
    _MATCHED: [(-0.03, 0.03)],
    (Status.DISCREPANCY_LOW, False): [(0.06, 0.09), (-0.09, -0.06)],
    (Status.DISCREPANCY_MEDIUM, False): [(0.12, 0.18), (-0.18, -0.12)],
    (Status.DISCREPANCY_HIGH, False): [(-0.7, -0.25)],
    (Status.AFFILIATE_OVERCLAIMED, False): [(0.23, 0.46)],
    (Status.AFFILIATE_OVERCLAIMED, True): [(0.55, 3.0)],
}
# The weight of each outcome by kind of affiliate, and the weight of each kind.
_CHARACTERS: Final = {
    "honest": (80, (92, 4, 2, 1, 1, 0)),
    "careless": (14, (55, 20, 13, 9, 2, 1)),
    "greedy": (6, (30, 8, 10, 2, 28, 22)),
}
# Which numbers the platforms lack at first (all or some), and whether they have them when asked again.
_GAPS: Final = {"late": 1.5, "partly, late": 1.0, "partly": 0.6, "never": 0.3}


@dataclass
class Truth:
    """The expected counts at the end of a run. Alerts are counted by (kind, severity)."""

    entries: int = 0
    reports: int = 0
    duplicates: int = 0
    retried: int = 0
    first: Counter[str] = field(default_factory=Counter)  # by status, after the first attempt
    final: Counter[str] = field(default_factory=Counter)
    alerts: Counter[tuple[str, str]] = field(default_factory=Counter)
    quarantine: Counter[str] = field(default_factory=Counter)  # by the beginning of the reason
    trust: Counter[str] = field(default_factory=Counter)  # hundredths, by affiliate


class Chunk(NamedTuple):
    """Entries for the queue (a str is an entry that is not a JSON object), and rows for the table of metrics."""

    entries: list[dict[str, Any] | str]
    metrics: list[dict[str, Any]]


class Sample:
    """`reports` reports, the same for the same seed and `now`. Iterate once: iterating fills `truth` and `posts`.

    `posts` is what the platforms answer when they are asked again, by platform.
    """

    def __init__(self, reports: int, seed: int = 7, now: datetime | None = None) -> None:
        self._reports = reports
        self._random = random.Random(seed)
        self._now = (now or datetime.now(UTC)).replace(microsecond=0)
        self._start = self._now - timedelta(days=_DAYS + 3)
        self._affiliates = self._invented_affiliates()
        self.truth = Truth()
        self.posts: dict[str, dict[str, Metrics]] = {name: {} for name in PLATFORMS}

    def __iter__(self) -> Iterator[Chunk]:
        again: deque[dict[str, Any]] = deque()  # sent a second time, a while after the first
        chunk = Chunk([], [])
        for number in range(1, self._reports + 1):
            report, metrics = self._report(number)
            chunk.entries.append(report)
            if metrics is not None:
                chunk.metrics.append(metrics)
            if self._random.random() < _DUPLICATES:
                again.append(report)
            if len(again) > 20:
                chunk.entries.append(again.popleft())
                self.truth.duplicates += 1
            if self._random.random() < _BROKEN:
                chunk.entries.append(self._broken(report))
            if len(chunk.entries) >= _CHUNK:
                yield self._counted(chunk)
                chunk = Chunk([], [])
        self.truth.duplicates += len(again)
        chunk.entries.extend(again)
        yield self._counted(chunk)

    def judged_at(self, share: float) -> datetime:
        """Return the simulated time at which this share of the reports is submitted and its numbers are known."""
        return self._start + timedelta(days=_DAYS * min(1.0, share) + 1) + _JITTER

    def _counted(self, chunk: Chunk) -> Chunk:
        self.truth.entries += len(chunk.entries)
        return chunk

    def _invented_affiliates(self) -> list[tuple[str, str]]:
        kinds, shares = list(_CHARACTERS), [share for share, _ in _CHARACTERS.values()]
        chosen = self._random.choices(kinds, shares, k=max(20, self._reports // _PER_AFFILIATE))
        return [(f"affiliate-{number:04}", kind) for number, kind in enumerate(chosen, 1)]

    def _report(self, number: int) -> tuple[dict[str, Any], dict[str, Any] | None]:
        draw = self._random
        affiliate, character = self._affiliates[int(draw.triangular(0, len(self._affiliates), 0))]
        platform = draw.choices(PLATFORMS, (5, 4, 2))[0]
        post = f"post-{number}"
        (outcome,) = draw.choices(list(_DIFFERENCES), _CHARACTERS[character][1])
        gap = self._gap(platform)
        # More than two days ago, so that a retry has the full allowance for growth.
        submitted = self._start + timedelta(days=_DAYS * number / self._reports) + _JITTER * draw.random()
        submitted = submitted.replace(microsecond=0)
        hours = float(DEFAULT_RULES.growth_cap_hours) if gap else draw.randrange(0, 24)
        observed = self._observed()
        report = {
            "report_id": number,
            "affiliate_id": affiliate,
            "platform": platform,
            "post_id": post,
            **self._claims(observed, outcome, hours),
            "submitted_at": submitted.isoformat(),
        }
        self._expect(affiliate, outcome, gap)
        shown = self._shown(observed, gap)
        if gap is not None:
            known = {"late": observed, "partly, late": observed, "partly": shown}.get(gap)
            if known is not None:
                self.posts[platform][post] = known
        if shown == Metrics(None, None, None):
            return report, None
        row = dict(zip(METRIC_NAMES, shown, strict=True))
        at = submitted + timedelta(hours=hours)
        return report, {"platform": platform, "post_id": post, **row, "observed_at": at}

    def _gap(self, platform: str) -> str | None:
        """Choose what the platform lacks at first; one platform has more gaps than the others."""
        times = 2.0 if platform == "stories" else 1.0
        spot = self._random.random() * 100.0
        for gap, percent in _GAPS.items():
            spot -= percent * times
            if spot < 0:
                return gap
        return None

    def _observed(self) -> Metrics:
        """Draw large numbers, so that rounding a claim does not change its verdict."""
        views = round(10 ** self._random.uniform(5.0, 6.5))
        clicks = round(views * self._random.uniform(0.05, 0.2))
        return Metrics(views, clicks, round(clicks * self._random.uniform(0.2, 0.4)))

    def _claims(self, observed: Metrics, outcome: tuple[Status, bool], hours: float) -> dict[str, int]:
        excused = 1.0 + DEFAULT_RULES.growth_per_hour * hours
        decisive = self._random.choice(METRIC_NAMES)
        claims = {}
        for name, value in zip(METRIC_NAMES, observed, strict=True):
            assert value is not None
            ranges = _DIFFERENCES[outcome if name == decisive else _MATCHED]
            difference = self._random.uniform(*self._random.choice(ranges))
            border = value * excused if difference > 0 else value / excused
            claims[f"claimed_{name}"] = round(border * (1.0 + difference))
        return claims

    def _shown(self, observed: Metrics, gap: str | None) -> Metrics:
        if gap is None:
            return observed
        if gap.startswith("partly"):
            hidden = self._random.sample(METRIC_NAMES, self._random.randint(1, 2))
            return Metrics(*(None if name in hidden else value for name, value in observed._asdict().items()))
        return Metrics(None, None, None)

    def _expect(self, affiliate: str, outcome: tuple[Status, bool], gap: str | None) -> None:
        truth = self.truth
        truth.reports += 1
        status, is_critical = outcome
        first = final = status
        if gap is not None:
            truth.retried += 1
            is_partial = gap.startswith("partly")
            first = Status.INCOMPLETE_PLATFORM_DATA if is_partial else Status.MISSING_PLATFORM_DATA
            final = status if gap.endswith("late") else first
        truth.first[first.value] += 1
        truth.final[final.value] += 1
        if final in TRUST_EVENTS:
            truth.trust[affiliate] += DEFAULT_RULES.trust.deltas[TRUST_EVENTS[final]]
        if final is Status.AFFILIATE_OVERCLAIMED:
            truth.alerts["fraud", "critical" if is_critical else "high"] += 1
        elif final is Status.DISCREPANCY_HIGH:
            truth.alerts["data_quality", "medium"] += 1
        elif final is Status.MISSING_PLATFORM_DATA:
            truth.alerts["system_health", "medium"] += 1

    def _broken(self, report: dict[str, Any]) -> dict[str, Any] | str:
        """Make an invalid entry from a valid report."""
        report = report | {"report_id": self._reports + report["report_id"]}
        kinds: list[tuple[str, dict[str, Any] | str]] = [
            ("claimed_views must be", report | {"claimed_views": -5}),
            ("claimed_clicks must be", report | {"claimed_clicks": "many"}),
            ("claimed_conversions is missing", report | {"claimed_conversions": None}),
            ("affiliate_id must be", report | {"affiliate_id": "  "}),
            ("submitted_at is", report | {"submitted_at": (self._now + timedelta(days=400)).isoformat()}),
            ("submitted_at must be", report | {"submitted_at": "yesterday"}),
            ("not a JSON object", "{'report_id': 1, <b>not JSON</b>"),
        ]
        reason, entry = self._random.choice(kinds)
        self.truth.quarantine[reason] += 1
        return entry
