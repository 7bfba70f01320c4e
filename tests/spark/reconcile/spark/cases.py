"""Random reports and metrics that cover every edge, and the results of the per-job path."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from conquiet.reconcile import Metrics, Rules, Status, alert_for, classify, elapsed_hours, retry_at

AS_OF = datetime(2026, 1, 31, 12, 0, 0, 123_457, tzinfo=UTC)
MOST = 2**63 - 1
PLATFORMS = ("photos", "clips", "ünïcode", "x" * 255)
TIME = pa.timestamp("us", "UTC")
REPORTS = pa.schema(
    [
        ("report_id", pa.int64()),
        ("affiliate_id", pa.string()),
        ("platform", pa.string()),
        ("post_id", pa.string()),
        ("claimed_views", pa.int64()),
        ("claimed_clicks", pa.int64()),
        ("claimed_conversions", pa.int64()),
        ("submitted_at", TIME),
        ("attempt", pa.int32()),
    ]
)
METRICS = pa.schema(
    [
        ("platform", pa.string()),
        ("post_id", pa.string()),
        ("views", pa.int64()),
        ("clicks", pa.int64()),
        ("conversions", pa.int64()),
        ("observed_at", TIME),
    ]
)

Row = dict[str, Any]
# What makes a good report invalid, and the field that the reason must begin with.
SPOILED: tuple[tuple[str, Any], ...] = (
    ("claimed_views", None),
    ("claimed_clicks", -1),
    ("claimed_conversions", -(2**63)),
    ("report_id", None),
    ("affiliate_id", None),
    ("affiliate_id", ""),
    ("platform", " \t\u2003\x1c\n"),
    ("post_id", "p" * 256),
    ("post_id", "a\0b"),
    ("submitted_at", None),
    ("submitted_at", AS_OF + timedelta(microseconds=1)),
    ("submitted_at", AS_OF + timedelta(days=4_000)),
    ("attempt", 0),
    ("attempt", -7),
)


@dataclass
class Cases:
    """`reports` and `metrics` are input rows, duplicates and invalid ones among them."""

    reports: list[Row] = field(default_factory=list)
    metrics: list[Row] = field(default_factory=list)
    good: dict[tuple[int, int], Row] = field(default_factory=dict)
    newest: dict[tuple[str, str], Row] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)  # for each invalid row, the field that is wrong


def draw(seed: int, count: int) -> Cases:
    random_ = random.Random(seed)
    cases = Cases()
    for number in range(count):
        report = _report(random_, number)
        kind = random_.random()
        if kind < 0.05:
            name, value = SPOILED[number % len(SPOILED)]
            cases.reports.append(report | {name: value})
            cases.refused.append(name)
            continue
        cases.good[report["report_id"], report["attempt"]] = report
        cases.reports += [report] * (3 if kind < 0.1 else 1)
        if kind > 0.95:  # a later attempt at the same report
            later = report | {"attempt": report["attempt"] + 1}
            cases.good[later["report_id"], later["attempt"]] = later
            cases.reports.append(later)
        _observe(random_, cases, report)
    random_.shuffle(cases.reports)
    random_.shuffle(cases.metrics)
    return cases


def verdicts(cases: Cases, rules: Rules) -> Iterator[tuple[Row, Row | None]]:
    """For each valid report, by the functions of the per-job path: the verdict's row, and the alert it raises."""
    for report in cases.good.values():
        seen = cases.newest.get((report["platform"], report["post_id"]))
        observed = Metrics(None, None, None)
        hours = 0.0
        if seen is not None:
            observed = Metrics(seen["views"], seen["clicks"], seen["conversions"])
            hours = elapsed_hours(report["submitted_at"], seen["observed_at"])
        claimed = Metrics(*(report[f"claimed_{name}"] for name in Metrics._fields))
        verdict = classify(claimed, observed, hours, rules)
        next_at = retry_at(verdict.status, report["attempt"], report["submitted_at"], AS_OF, rules)
        row = {name: report[name] for name in ("report_id", "affiliate_id", "platform", "attempt")} | {
            "status": verdict.status.value,
            "level": verdict.level and verdict.level.value,
            "max_diff": verdict.max_diff,
            "confidence": verdict.confidence,
            "trust_event": verdict.trust_event and verdict.trust_event.value,
            "trust_delta": verdict.trust_event and rules.trust.deltas[verdict.trust_event],
            "missing_fields": list(verdict.missing_fields),
            "scheduled_retry_at": next_at,
        }
        rule = alert_for(Status(verdict.status), verdict.level, next_at is not None, rules)
        yield row, None if rule is None else {"kind": rule.kind, "severity": rule.severity}


def _report(random_: random.Random, number: int) -> Row:
    age = random_.choice([0, 1, 3_600 * 10**6, random_.randrange(30 * 3_600 * 10**6), 86_400 * 10**6])
    return {
        "report_id": random_.choice([number, MOST - number, -number - 1]),
        "affiliate_id": f"affiliate {number % 7}",
        "platform": random_.choice(PLATFORMS),
        "post_id": f"post-{number}",
        "claimed_views": _number(random_),
        "claimed_clicks": _number(random_),
        "claimed_conversions": _number(random_),
        "submitted_at": AS_OF - timedelta(microseconds=age),
        "attempt": random_.choice([1, 1, 1, 2, 3, 4, 5, 6, 2**31 - 2]),
    }


def _number(random_: random.Random) -> int:
    edges = [0, 1, MOST, MOST - 1, 2**53, 2**53 + 1, 1_000]
    return random_.choice(edges) if random_.random() < 0.3 else int(10 ** random_.uniform(0, 18.9))


def _observe(random_: random.Random, cases: Cases, report: Row) -> None:
    """Up to three observations of the report's post, some of them in the future, some impossible."""
    key = {"platform": report["platform"], "post_id": report["post_id"]}
    claims = [report[f"claimed_{name}"] for name in Metrics._fields]
    for _ in range(random_.choice([0, 1, 1, 2, 3])):
        shift = random_.choice([0, 1, random_.randrange(40 * 3_600 * 10**6), -5 * 10**9])
        row = key | {"observed_at": report["submitted_at"] + timedelta(microseconds=shift)}
        row |= {name: _seen(random_, claim) for name, claim in zip(Metrics._fields, claims, strict=True)}
        if random_.random() < 0.02:
            name = random_.choice([*Metrics._fields, "observed_at"])
            cases.metrics.append(row | {name: None if name == "observed_at" else -1})
            cases.refused.append(name)
            continue
        moment, place = row["observed_at"], (row["platform"], row["post_id"])
        known = cases.newest.get(place)
        if known is not None and known["observed_at"] == moment:
            continue
        cases.metrics += [row] * random_.choice([1, 1, 2])
        if moment <= AS_OF and (known is None or known["observed_at"] < moment):
            cases.newest[place] = row


def _seen(random_: random.Random, claim: int) -> int | None:
    """Mostly close to the claim, so that every threshold is met from both sides."""
    kind = random_.random()
    if kind < 0.08:
        return None
    if kind < 0.2:
        return _number(random_)
    share = random_.choice([1.0, 0.95, 1.05, 0.9, 1.1, 0.8, 1.2, 0.5, 1.5, random_.uniform(0.4, 1.7)])
    return max(0, min(MOST, round(claim / share) + random_.choice([-1, 0, 0, 1])))
