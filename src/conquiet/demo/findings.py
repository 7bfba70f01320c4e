"""The outcome of a sample run, counted from its tables and compared with the generator's expectations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import select
from sqlalchemy.orm import Session, sessionmaker

from conquiet.demo.sample import Truth
from conquiet.reconcile import (
    TRUST_EVENTS,
    AffiliateReport,
    Alert,
    ReportAttempt,
    Rules,
    Status,
    TrustEntry,
    table_of,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Findings", "Line", "add_retries", "compared", "counted"]

_REPORTS, _ATTEMPTS, _TRUST, _ALERTS = map(table_of, (AffiliateReport, ReportAttempt, TrustEntry, Alert))


@dataclass
class Findings:
    """The numbers that `Truth` predicts, and two that must be 0 at the end: `pending` and `unfinished_jobs`."""

    first: Counter[str] = field(default_factory=Counter)
    final: Counter[str] = field(default_factory=Counter)
    alerts: Counter[tuple[str, str]] = field(default_factory=Counter)
    quarantine: Counter[str] = field(default_factory=Counter)
    trust: Counter[str] = field(default_factory=Counter)
    retried: int = 0
    pending: int = 0
    unfinished_jobs: int = 0


class Line(NamedTuple):
    """One figure: what was generated, and what was found."""

    group: str
    name: str
    expected: int
    found: int


def add_retries(spark: SparkSession, sessions: sessionmaker[Session], out: Path, rules: Rules) -> None:
    """Copy the results of the retries from the database to the tables of the run, next to Spark's."""
    with sessions() as session:
        attempts = session.execute(
            select(_ATTEMPTS, _REPORTS.c.affiliate_id, _REPORTS.c.platform).join(
                _REPORTS, _REPORTS.c.id == _ATTEMPTS.c.report_id
            )
        ).all()
        tables = {
            "verdicts": [_verdict(row, rules) for row in attempts],
            "trust": [row._asdict() for row in session.execute(select(_TRUST))],
            "alerts": [row._asdict() for row in session.execute(select(_ALERTS))],
        }
    for name, rows in tables.items():
        if rows:
            like = spark.read.parquet(str(out / name)).drop("day", "batch").schema
            names = like.fieldNames()
            frame = spark.createDataFrame([tuple(row[column] for column in names) for row in rows], like)
            folder = out / name / f"day={attempts[0].attempted_at.date()}" / "batch=retries"
            frame.coalesce(1).write.mode("overwrite").parquet(str(folder))


def counted(spark: SparkSession, out: Path) -> Findings:
    """Count the tables in `out`. The caller adds `pending` and `unfinished_jobs`."""
    from pyspark.sql import functions as f

    verdicts = spark.read.parquet(str(out / "verdicts"))
    last = verdicts.groupBy("report_id").agg(
        f.max_by("status", "attempt").alias("final"), f.min_by("status", "attempt").alias("first")
    )
    found = Findings(retried=spark.read.parquet(str(out / "retries")).count())
    for row in last.groupBy("first", "final").count().collect():
        found.first[row["first"]] += row["count"]
        found.final[row["final"]] += row["count"]
    for row in spark.read.parquet(str(out / "alerts")).groupBy("kind", "severity").count().collect():
        found.alerts[row["kind"], row["severity"]] = row["count"]
    for row in spark.read.parquet(str(out / "quarantine")).groupBy("reason").count().collect():
        found.quarantine[row["reason"]] += row["count"]
    trust = spark.read.parquet(str(out / "trust")).groupBy("affiliate_id").agg(f.sum("delta_hundredths"))
    found.trust.update({row[0]: row[1] for row in trust.collect()})
    return found


def compared(truth: Truth, found: Findings) -> Iterator[Line]:
    """Yield every figure with its expected value."""
    yield from _each("first verdict", truth.first, found.first)
    yield from _each("final verdict", truth.final, found.final)
    yield from _each("alerts", _named(truth.alerts), _named(found.alerts))
    yield from _each("quarantine", truth.quarantine, _by_beginning(found.quarantine, truth.quarantine))
    yield Line("reports", "judged", truth.reports, sum(found.final.values()))
    yield Line("reports", "retried as jobs", truth.retried, found.retried)
    right = sum(1 for name in truth.trust if truth.trust[name] == found.trust[name])
    yield Line("trust", "affiliates whose sum is exact", len(truth.trust), right)
    yield Line("trust", "sum, in hundredths", sum(truth.trust.values()), sum(found.trust.values()))
    yield Line("left over", "entries not acknowledged", 0, found.pending)
    yield Line("left over", "jobs not finished", 0, found.unfinished_jobs)


def _each(group: str, truth: Mapping[str, int], found: Mapping[str, int]) -> Iterator[Line]:
    for name in sorted({*truth, *found}):
        yield Line(group, name, truth.get(name, 0), found.get(name, 0))


def _named(alerts: Mapping[tuple[str, str], int]) -> dict[str, int]:
    return {f"{kind}, {severity}": count for (kind, severity), count in alerts.items()}


def _by_beginning(reasons: Mapping[str, int], beginnings: Mapping[str, int]) -> Counter[str]:
    """Reasons quote the wrong value, so they are counted by their beginning."""
    result: Counter[str] = Counter()
    for reason, count in reasons.items():
        result[next((one for one in beginnings if reason.startswith(one)), reason)] += count
    return result


def _verdict(row: Any, rules: Rules) -> dict[str, Any]:
    event = TRUST_EVENTS.get(Status(row.status))
    values: dict[str, Any] = row._asdict()
    return values | {
        "missing_fields": [name for name in row.missing_fields.split(",") if name],
        "trust_event": event and event.value,
        "trust_delta": None if event is None else rules.trust.deltas[event],
    }
