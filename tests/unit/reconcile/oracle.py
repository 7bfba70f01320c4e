"""A second implementation of the verdicts, from the specification alone: tables and exact fractions, none of our code.

Within a trillionth of a threshold, doubles and fractions may fall on different sides of it: there the oracle accepts
either. These cases are rare, and the tests count them.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Any

NAMES = ("views", "clicks", "conversions")
EDGE = Fraction(1, 10**12)
HOUR = Fraction(3_600_000_000)

# By the absolute value of the largest difference: the first row whose limit is not exceeded.
BY_SIZE = [
    (Fraction(5, 100), "MATCHED", None, 1),
    (Fraction(10, 100), "DISCREPANCY_LOW", "LOW", -1),
    (Fraction(20, 100), "DISCREPANCY_MEDIUM", "MEDIUM", -3),
    (None, "DISCREPANCY_HIGH", "HIGH", -5),
]
# By the largest positive difference: the first row whose limit is reached.
OVERCLAIMED = [(Fraction(50, 100), "CRITICAL"), (Fraction(20, 100), "HIGH")]
ALERTS = {
    ("AFFILIATE_OVERCLAIMED", "CRITICAL"): ("fraud", "critical"),
    ("AFFILIATE_OVERCLAIMED", "HIGH"): ("fraud", "high"),
    ("DISCREPANCY_HIGH", "HIGH"): ("data_quality", "medium"),
}

Observed = tuple[int | None, int | None, int | None]


@dataclass(frozen=True)
class Opinion:
    status: str
    level: str | None
    delta: int | None  # in hundredths
    confidence: Fraction
    missing: tuple[str, ...]


def opinions(claimed: tuple[int, int, int], observed: Observed, elapsed: timedelta) -> list[Opinion]:
    """The acceptable verdicts; more than one only on a threshold."""
    missing = tuple(name for name, value in zip(NAMES, observed, strict=True) if value is None)
    confidence = Fraction(3 - len(missing), 3)
    if len(missing) == 3:
        return [Opinion("MISSING_PLATFORM_DATA", None, None, confidence, missing)]
    if missing:
        return [Opinion("INCOMPLETE_PLATFORM_DATA", None, None, confidence, missing)]
    diffs = [
        difference(claim, value, elapsed)
        for claim, value in zip(claimed, observed, strict=True)
        if value is not None
    ]
    found = {verdict(diffs, shift) for shift in (Fraction(0), EDGE, -EDGE)}
    return [Opinion(status, level, delta, confidence, ()) for status, level, delta in found]


def difference(claimed: int, observed: int, elapsed: timedelta) -> Fraction:
    hours = Fraction(elapsed // timedelta(microseconds=1)) / HOUR
    growth = 1 + Fraction(1, 100) * min(max(hours, Fraction(0)), Fraction(24))
    upper, lower = observed * growth, observed / growth
    if claimed > upper:
        return (claimed - upper) / max(upper, Fraction(1))
    if claimed < lower:
        return (claimed - lower) / max(lower, Fraction(1))
    return Fraction(0)


def verdict(diffs: list[Fraction], shift: Fraction) -> tuple[str, str | None, int]:
    for bound, level in OVERCLAIMED:
        if max(diffs) >= bound + shift:
            return "AFFILIATE_OVERCLAIMED", level, -10
    largest = max(abs(diff) for diff in diffs)
    return next(
        (status, level, delta)
        for bound, status, level, delta in BY_SIZE
        if bound is None or largest <= bound + shift
    )


def retry(status: str, earlier: list[str], submitted_at: datetime, at: datetime) -> datetime | None:
    attempt = len(earlier) + 1
    if status == "MISSING_PLATFORM_DATA":
        following = at + timedelta(minutes=30) * attempt
        return following if attempt < 5 and following - submitted_at <= timedelta(hours=24) else None
    if status == "INCOMPLETE_PLATFORM_DATA" and status not in earlier:
        return at + timedelta(minutes=15)
    return None


def alert(opinion: Opinion, next_at: datetime | None) -> tuple[str, str] | None:
    if opinion.status == "MISSING_PLATFORM_DATA" and next_at is None:
        return "system_health", "medium"
    return ALERTS.get((opinion.status, opinion.level or ""))


@dataclass
class Sample:
    """A random report, and what its platform answers at each attempt."""

    claimed: tuple[int, int, int]
    answers: list[Observed]
    submitted_at: datetime
    first_attempt_at: datetime
    affiliate: str
    history: list[Any] = field(default_factory=list)


def draw(random: random.Random) -> Sample:
    """Draw every kind: tiny and huge numbers, honest, grown, lagging, invented, with gaps, on the thresholds."""
    observed = tuple(int(10 ** random.uniform(0, random.choice([1, 4, 18]))) for _ in NAMES)
    if random.random() < 0.1:
        observed = tuple(0 if random.random() < 0.5 else value for value in observed)
    spread = random.choice([0.0, 0.03, 0.08, 0.15, 0.3, 2.0])
    claimed = tuple(
        min(
            2**63 - 1,
            max(0, round(value * (1 + random.uniform(-spread, spread))) + random.choice([0, 0, 0, 1])),
        )
        for value in observed
    )
    if random.random() < 0.05:  # exactly on a threshold, or just beside it
        share = random.choice([5, 10, 20, 50])
        observed = tuple(100 * random.randint(1, 1000) for _ in NAMES)
        claimed = tuple(value + value * share // 100 + random.choice([-1, 0, 1]) for value in observed)
    submitted_at = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(microseconds=random.randrange(10**13))
    elapsed = random.choice(
        [timedelta(0), timedelta(minutes=random.randrange(90)), timedelta(hours=random.uniform(0, 40))]
    )
    return Sample(
        claimed=claimed,  # type: ignore[arg-type]
        answers=[gaps(observed, random) for _ in range(6)],  # the sixth if the fifth is the first with gaps
        submitted_at=submitted_at,
        first_attempt_at=submitted_at + elapsed,
        affiliate=f"affiliate-{random.randrange(200)}",
    )


def gaps(observed: tuple[int, ...], random: random.Random) -> Observed:
    kind = random.random()
    lost = 3 if kind < 0.12 else random.choice([1, 2]) if kind < 0.25 else 0
    chosen = random.sample(range(3), lost)
    return tuple(None if index in chosen else value for index, value in enumerate(observed))  # type: ignore[return-value]
