"""Random reports through the whole per-job path, each to its end, compared with an independent oracle."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta

import pytest
from sqlalchemy import insert, select
from sqlalchemy.orm import Session, sessionmaker

from conquiet.clock import SystemClock
from conquiet.local import CircuitBreakerRegistry
from conquiet.reconcile import (
    Metrics,
    Observation,
    PlatformAdapter,
    PlatformFetcher,
    ReconciliationResult,
    run_reconciliation,
    trust_scores,
)
from conquiet.reconcile.models import AffiliateReport, Alert, ReportAttempt
from tests.campaign import campaign_size
from tests.unit.reconcile import oracle
from tests.unit.reconcile.oracle import Sample

Sessions = sessionmaker[Session]
GROUP = 500  # reports per transaction: with a commit each, the test would measure the disk


class SetClock(SystemClock):
    """Shows the time that it was set to."""

    now: datetime

    def time(self) -> float:
        return self.now.timestamp()


class Script(PlatformAdapter):
    """Answers as the sample says, attempt by attempt."""

    answer: oracle.Observed

    def fetch(self, post_id: str) -> Observation:
        return Observation(Metrics(*self.answer))


@pytest.mark.clause("W-23", "W-24")
@pytest.mark.campaign
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("dsn", "full"), [("sqlite", 100_000), ("postgresql", 10_000)], indirect=["dsn"])
def test_every_report_ends_as_the_oracle_says(sessions: Sessions, full: int) -> None:
    draws = random.Random(20260131)
    samples = [oracle.draw(draws) for _ in range(campaign_size(full))]
    reports = store_all(sessions, samples)
    clock, script = SetClock(), Script()
    fetcher = PlatformFetcher({"x": script}, breakers=CircuitBreakerRegistry(clock=clock), clock=clock)
    edges = 0
    trust: Counter[str] = Counter()
    alerts: dict[tuple[int, str], tuple[str, str]] = {}
    attempts = 0
    for group in groups(list(zip(reports, samples, strict=True))):
        with sessions() as session:
            for report_id, sample in group:
                statuses: list[str] = []
                at, attempt, next_at = sample.first_attempt_at, 0, sample.first_attempt_at
                while next_at is not None:
                    attempt, at = attempt + 1, next_at
                    # A clock's time is a double, which cannot represent every microsecond.
                    clock.now, script.answer = at, sample.answers[attempt - 1]
                    result = run_reconciliation(
                        report_id, session=session, fetcher=fetcher, clock=clock, attempt=attempt
                    )
                    again = run_reconciliation(
                        report_id, session=session, fetcher=fetcher, clock=clock, attempt=attempt
                    )
                    assert (result.applied, again.applied) == (True, False)
                    opinion, on_edge = agreed(sample, script.answer, at, result)
                    edges += on_edge
                    next_at = oracle.retry(opinion.status, statuses, sample.submitted_at, at)
                    statuses.append(opinion.status)
                    assert result.scheduled_retry_at == next_at
                    if opinion.delta is not None:
                        trust[sample.affiliate] += opinion.delta
                    expected = oracle.alert(opinion, next_at)
                    raised = None if result.alert is None else (result.alert.kind, result.alert.severity)
                    assert raised == expected
                    if expected is not None:
                        alerts[report_id, opinion.status] = expected
                    attempts += 1
            session.commit()
    assert edges < len(samples) / 20
    with sessions() as session:
        assert session.query(ReportAttempt).count() == attempts
        assert session.query(AffiliateReport).filter(AffiliateReport.finished_at.is_(None)).count() == 0
        found = {
            (one.report_id, one.status): (one.kind, one.severity) for one in session.scalars(select(Alert))
        }
        assert found == alerts
        clamped = {name: max(0, min(100, 50 + total)) / 100 for name, total in trust.items()}
        assert trust_scores(session) == clamped


def agreed(
    sample: Sample, answer: oracle.Observed, at: datetime, result: ReconciliationResult
) -> tuple[oracle.Opinion, bool]:
    accepted = oracle.opinions(sample.claimed, answer, at - sample.submitted_at)
    for opinion in accepted:
        if (opinion.status, opinion.level) == (result.status, result.level):
            return opinion, len(accepted) > 1
    raise AssertionError(f"{result} is none of {accepted} for {sample}")


def store_all(sessions: Sessions, samples: list[Sample]) -> list[int]:
    with sessions() as session:
        rows = [
            {
                "id": number,
                "affiliate_id": sample.affiliate,
                "platform": "x",
                "post_id": "p",
                "claimed_views": sample.claimed[0],
                "claimed_clicks": sample.claimed[1],
                "claimed_conversions": sample.claimed[2],
                "submitted_at": sample.submitted_at,
                "received_at": sample.submitted_at,
                "attempts": 0,
                "priority": "normal",
            }
            for number, sample in enumerate(samples, start=1)
        ]
        session.execute(insert(AffiliateReport), rows)
        session.commit()
    return [row["id"] for row in rows]  # type: ignore[misc]


def groups(items: list[tuple[int, Sample]]) -> Iterator[list[tuple[int, Sample]]]:
    for start in range(0, len(items), GROUP):
        yield items[start : start + GROUP]


def test_the_clock_of_this_test_keeps_microseconds() -> None:
    """If doubles lost any, the oracle's retry times could not be compared exactly."""
    clock = SetClock()
    draws = random.Random(1)
    for _ in range(10_000):
        clock.now = oracle.draw(draws).first_attempt_at
        shown = datetime.fromtimestamp(clock.time(), clock.now.tzinfo)
        assert abs(shown - clock.now) <= timedelta(microseconds=0)
