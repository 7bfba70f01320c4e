"""Jobs that contain their whole report: the retries of the Spark pipeline, run by the task of the per-job path."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy.orm import Session, sessionmaker

from conquiet.connectors import IterableConnector
from conquiet.reconcile import Metrics, ReconciliationTask
from conquiet.reconcile.models import AffiliateReport, ReportAttempt
from conquiet.task.exceptions import ExceptionCategory
from conquiet.testing import ManualClock
from tests.integration.reconcile.reports import counts, moment, platform, report, rows, store

Sessions = sessionmaker[Session]


def job(clock: ManualClock, **changes: Any) -> dict[str, Any]:
    """A job as `reconcile_stream` writes it."""
    claims = {"claimed_views": 1000, "claimed_clicks": 30, "claimed_conversions": 2}
    return {
        "affiliate_report_id": 70,
        "attempt": 2,
        "scheduled_at": moment(clock).isoformat(),
        "affiliate_id": "ann",
        "platform": "instagram",
        "post_id": "p1",
        "submitted_at": moment(clock, -3600).isoformat(),
        **claims,
        **changes,
    }


def consumed(sessions: Sessions, clock: ManualClock, *jobs: dict[str, Any]) -> Any:
    fetcher, _ = platform({"p1": Metrics(1000, 30, 2)}, clock)
    task = ReconciliationTask(fetcher, sessions, clock=clock)
    return task.consume_transactions(IterableConnector(jobs))


def test_the_report_is_taken_over_and_its_next_attempt_is_made_once(sessions: Sessions) -> None:
    clock = ManualClock()
    ended = consumed(sessions, clock, job(clock), job(clock))
    assert ended.succeeded == 2
    found = report(sessions, 70)
    assert (found.affiliate_id, found.attempts, found.status) == ("ann", 2, "MATCHED")
    assert found.submitted_at == moment(clock, -3600)
    (attempt,) = rows(sessions, ReportAttempt)
    assert (attempt.report_id, attempt.attempt) == (70, 2)
    assert counts(sessions)["trust_ledger"] == 1


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"post_id": None}, "there is no report 70"),
        ({"claimed_views": -1}, "claimed_views must be a whole number"),
        ({"submitted_at": "2999-01-01T00:00:00Z"}, "in the future"),
    ],
)
def test_what_is_no_whole_report_is_refused_and_nothing_stored(
    sessions: Sessions, changes: dict[str, Any], reason: str
) -> None:
    clock = ManualClock()
    ended = consumed(sessions, clock, job(clock, **changes))
    (outcome,) = ended.outcomes
    assert outcome.category is ExceptionCategory.BUSINESS
    assert reason in str(outcome.exception)
    assert rows(sessions, AffiliateReport) == []


def test_a_report_of_the_same_number_that_is_another_is_not_touched(sessions: Sessions) -> None:
    clock = ManualClock()
    number = store(sessions, clock, affiliate_id="bob")
    ended = consumed(sessions, clock, job(clock, affiliate_report_id=number, attempt=1))
    (outcome,) = ended.outcomes
    assert f"report {number} is another one in this database" in str(outcome.exception)
    assert counts(sessions)["attempts"] == 0
