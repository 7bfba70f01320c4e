"""Random rows of outputs and of job history, and the same analytics in plain Python."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from conquiet.reconcile import DEFAULT_RULES, Status

Row = dict[str, Any]
TIME = pa.timestamp("us", "UTC")
VERDICTS = pa.schema(
    [
        ("report_id", pa.int64()),
        ("affiliate_id", pa.string()),
        ("platform", pa.string()),
        ("attempt", pa.int64()),
        ("status", pa.string()),
        ("scheduled_retry_at", TIME),
    ]
)
TRUST = pa.schema([("affiliate_id", pa.string()), ("delta_hundredths", pa.int32()), ("recorded_at", TIME)])
ATTEMPTS = pa.schema(
    [
        ("job_id", pa.string()),
        ("queue", pa.string()),
        ("number", pa.int64()),
        ("enqueued_at", TIME),
        ("started_at", TIME),
        ("ended_at", TIME),
        ("outcome", pa.string()),
    ]
)
NAMES = ("ann", "Ann", "ünï", "<b>&", "\u202ertl", "x" * 255, "0")
PLATFORMS = ("photos", "clips", "写真")
START = datetime(2026, 1, 30, 21, 0, 0, 123_457, tzinfo=UTC)


def frame(spark: SparkSession, rows: list[Row], schema: pa.Schema) -> DataFrame:
    return spark.createDataFrame(pa.Table.from_pylist(rows, schema))


def draw_verdicts(seed: int, reports: int) -> list[Row]:
    """Some reports have several attempts, in any order; the newest counts."""
    random_ = random.Random(seed)
    rows = []
    for number in range(reports):
        name = NAMES[int(random_.random() ** 2 * len(NAMES))]
        report = {"report_id": number * 7 - 3, "affiliate_id": name, "platform": random_.choice(PLATFORMS)}
        for attempt in range(1, random_.choice([1, 1, 1, 2, 5]) + 1):
            status = random_.choices(list(Status), [9, 2, 1, 1, 2, 1, 3])[0]
            retry = START if status is Status.MISSING_PLATFORM_DATA and random_.random() < 0.5 else None
            rows.append(report | {"attempt": attempt, "status": status.value, "scheduled_retry_at": retry})
    random_.shuffle(rows)
    return rows


def outcomes(verdicts: Iterable[Row], by: tuple[str, ...]) -> list[Row]:
    newest: dict[int, Row] = {}
    for row in verdicts:
        if (known := newest.get(row["report_id"])) is None or known["attempt"] < row["attempt"]:
            newest[row["report_id"]] = row
    groups: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    for row in newest.values():
        groups[tuple(row[name] for name in by)].append(row)
    tables = []
    for key, rows in groups.items():
        counts = Counter(row["status"] for row in rows)
        tables.append(
            dict(zip(by, key, strict=True))
            | {
                "reports": len(rows),
                "judged_again": sum(row["attempt"] > 1 for row in rows),
                "pending": sum(row["scheduled_retry_at"] is not None for row in rows),
            }
            | {status.value.lower(): counts[status.value] for status in Status}
            | {f"{status.value.lower()}_rate": counts[status.value] / len(rows) for status in Status}
        )
    return tables


def draw_trust(seed: int, events: int) -> list[Row]:
    """Events over two weeks, some exactly at midnight; enough of them that scores are clamped."""
    random_ = random.Random(seed)
    rows = []
    for _ in range(events):
        name = random_.choice(NAMES)
        good = 0.95 if name in NAMES[:3] else 0.4
        delta = 1 if random_.random() < good else random_.choice([-1, -3, -5, -10])
        moment = START + timedelta(seconds=random_.uniform(0, 14 * 86_400))
        if random_.random() < 0.2:
            midnight = moment.replace(hour=0, minute=0, second=0, microsecond=0)
            moment = midnight - timedelta(microseconds=random_.choice([0, 1]))
        rows.append({"affiliate_id": name, "delta_hundredths": delta, "recorded_at": moment})
    return rows


def scores(trust: Iterable[Row]) -> list[Row]:
    """Scores per affiliate and day with an event."""
    rules = DEFAULT_RULES.trust
    days: dict[tuple[str, date], list[int]] = defaultdict(list)
    for row in trust:
        days[row["affiliate_id"], row["recorded_at"].date()].append(row["delta_hundredths"])
    sums: Counter[str] = Counter()
    tables = []
    for (name, day), deltas in sorted(days.items()):
        sums[name] += sum(deltas)
        score = min(max(rules.start + sums[name], rules.lowest), rules.highest)
        tables.append(
            {
                "day": day,
                "affiliate_id": name,
                "events": len(deltas),
                "delta_hundredths": sum(deltas),
                "score_hundredths": score,
            }
        )
    return tables


def means(by_day: Iterable[Row]) -> list[Row]:
    known: dict[str, int] = {}
    tables = []
    rows = sorted(by_day, key=lambda row: row["day"])
    for day in sorted({row["day"] for row in rows}):
        today = [row for row in rows if row["day"] == day]
        known |= {row["affiliate_id"]: row["score_hundredths"] for row in today}
        tables.append(
            {
                "day": day,
                "events": sum(row["events"] for row in today),
                "affiliates": len(known),
                "below_start": sum(score < DEFAULT_RULES.trust.start for score in known.values()),
                "mean_score": sum(known.values()) / len(known) / 100,
            }
        )
    return tables


def draw_attempts(seed: int, jobs: int) -> list[Row]:
    random_ = random.Random(seed)
    rows = []
    for number in range(jobs):
        enqueued = START + timedelta(microseconds=random_.randrange(10**10))
        # Some ids occur twice: the first job with that id was pruned.
        job = {
            "job_id": f"job {number % (jobs - jobs // 10)}",
            "queue": random_.choice(["a", "b", "b", "só"]),
        }
        free = enqueued
        for attempt in range(1, random_.choice([1, 1, 1, 2, 4]) + 1):
            start = free + timedelta(microseconds=random_.choice([0, 1, int(10 ** random_.uniform(0, 9))]))
            free = start + timedelta(microseconds=int(10 ** random_.uniform(0, 7)))
            outcome = random_.choice(["succeeded", "failed", "released", "lease expired"])
            times = {"enqueued_at": enqueued, "started_at": start, "ended_at": free}
            rows.append(job | {"number": attempt, "outcome": outcome} | times)
    random_.shuffle(rows)
    return rows


def times(attempts: Iterable[Row]) -> list[Row]:
    values: dict[tuple[str, str], list[int]] = defaultdict(list)
    before: dict[tuple[str, datetime], datetime] = {}
    for row in sorted(attempts, key=lambda row: row["number"]):
        job = (row["job_id"], row["enqueued_at"])
        measure = "retry_wait" if job in before else "first_wait"
        waited = row["started_at"] - before.get(job, row["enqueued_at"])
        values[row["queue"], measure].append(waited // timedelta(microseconds=1))
        if row["outcome"] in ("succeeded", "failed"):
            took = row["ended_at"] - row["started_at"]
            values[row["queue"], "processing"].append(took // timedelta(microseconds=1))
        before[job] = row["ended_at"]
    return [
        {"queue": queue, "measure": measure, "attempts": len(found)}
        | {f"p{percent}": nearest_rank(found, percent) / 1e6 for percent in (50, 90, 99)}
        | {"max": max(found) / 1e6}
        for (queue, measure), found in values.items()
    ]


def nearest_rank(values: list[int], percent: int) -> int:
    """The smallest value such that `percent` of all are not above it, found by counting."""
    ordered = sorted(values)
    return next(value for place, value in enumerate(ordered, 1) if place * 100 >= percent * len(ordered))
