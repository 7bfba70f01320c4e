"""One attempt at one report, on both databases: what is written, and that it is written once."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from sqlalchemy.exc import StatementError
from sqlalchemy.orm import Session, sessionmaker

from conquiet.errors import AttemptOrderError, ReconcileConfigError, ReportNotFoundError
from conquiet.reconcile import (
    Level,
    Metrics,
    Observation,
    PlatformAdapter,
    PlatformFetcher,
    ReconciliationResult,
    Status,
    alerts_of,
    open_database,
    run_reconciliation,
    trust_score,
    trust_scores,
)
from conquiet.reconcile.models import AffiliateReport, Alert, ReportAttempt, ScheduledAttempt, TrustEntry
from conquiet.testing import ManualClock
from tests.integration.reconcile import killed
from tests.integration.reconcile.reports import NOTHING, counts, moment, platform, report, rows, store

Sessions = sessionmaker[Session]


@pytest.mark.clause("W-23")
def test_a_match_is_recorded_with_its_trust(sessions: Sessions) -> None:
    clock = ManualClock()
    fetcher, _ = platform({"p1": Metrics(1000, 30, 2)}, clock)
    report_id = store(sessions, clock, age_seconds=3600)
    result = run_reconciliation(report_id, session_factory=sessions, fetcher=fetcher, clock=clock)
    assert (result.status, result.level, result.applied, result.is_final) == (
        Status.MATCHED,
        None,
        True,
        True,
    )
    kept = report(sessions, report_id)
    assert (kept.status, kept.level, kept.attempts, kept.scheduled_retry_at) == ("MATCHED", None, 1, None)
    assert kept.finished_at == moment(clock)
    (attempt,) = rows(sessions, ReportAttempt)
    assert (attempt.observed_views, attempt.observed_clicks, attempt.observed_conversions) == (1000, 30, 2)
    assert (attempt.max_diff, attempt.confidence, attempt.missing_fields) == (0.0, 1.0, "")
    assert (attempt.attempted_at, attempt.observed_at) == (moment(clock), moment(clock))
    (entry,) = rows(sessions, TrustEntry)
    assert (entry.affiliate_id, entry.event, entry.delta_hundredths) == ("ann", "PERFECT_MATCH", 1)
    assert counts(sessions) == {"attempts": 1, "trust_ledger": 1, "alerts": 0, "scheduled_attempts": 0}
    with sessions() as session:
        assert trust_score(session, "ann") == 0.51
        assert trust_score(session, "nobody") == 0.5


@pytest.mark.clause("W-23")
@pytest.mark.parametrize(
    ("views", "status", "kind", "severity", "score"),
    [
        (1300, Status.AFFILIATE_OVERCLAIMED, "fraud", "high", 0.4),
        (1600, Status.AFFILIATE_OVERCLAIMED, "fraud", "critical", 0.4),
        (700, Status.DISCREPANCY_HIGH, "data_quality", "medium", 0.45),
    ],
)
def test_what_a_person_should_look_at_raises_one_alert(
    sessions: Sessions, views: int, status: Status, kind: str, severity: str, score: float
) -> None:
    clock = ManualClock()
    fetcher, _ = platform({"p1": Metrics(1000, 30, 2)}, clock)
    report_id = store(sessions, clock, (views, 30, 2))
    for _ in range(3):
        result = run_reconciliation(report_id, session_factory=sessions, fetcher=fetcher, clock=clock)
        assert result.status is status
    with sessions() as session:
        (alert,) = alerts_of(session, report_id)
        assert (alert.status, alert.kind, alert.severity, alert.attempt) == (status.value, kind, severity, 1)
        assert trust_score(session, "ann") == score


@pytest.mark.clause("W-23")
def test_missing_data_is_asked_for_five_times_and_then_alerted(sessions: Sessions) -> None:
    clock = ManualClock()
    fetcher, adapter = platform({}, clock)
    report_id = store(sessions, clock)
    for attempt, minutes in enumerate([30, 60, 90, 120], start=1):
        result = run_reconciliation(
            report_id, session_factory=sessions, fetcher=fetcher, clock=clock, attempt=attempt
        )
        assert (result.status, result.is_final) == (Status.MISSING_PLATFORM_DATA, False)
        assert result.scheduled_retry_at == moment(clock, minutes * 60)
        assert report(sessions, report_id).scheduled_retry_at == result.scheduled_retry_at
        (scheduled,) = rows(sessions, ScheduledAttempt)
        assert (scheduled.attempt, scheduled.due_at, scheduled.enqueued_at) == (
            attempt + 1,
            result.scheduled_retry_at,
            None,
        )
        assert rows(sessions, Alert) == []
        clock.advance(minutes * 60)
    last = run_reconciliation(report_id, session_factory=sessions, fetcher=fetcher, clock=clock, attempt=5)
    assert last.is_final
    (alert,) = rows(sessions, Alert)
    assert (alert.kind, alert.severity, alert.attempt) == ("system_health", "medium", 5)
    assert counts(sessions) == {"attempts": 5, "trust_ledger": 0, "alerts": 1, "scheduled_attempts": 0}
    assert report(sessions, report_id).finished_at == moment(clock)
    assert adapter.calls == 5


@pytest.mark.clause("W-23")
def test_a_late_report_is_not_asked_for_beyond_its_day(sessions: Sessions) -> None:
    clock = ManualClock()
    fetcher, _ = platform({}, clock)
    report_id = store(sessions, clock, age_seconds=24 * 3600 - 1799)
    result = run_reconciliation(report_id, session_factory=sessions, fetcher=fetcher, clock=clock)
    assert result.is_final
    assert [alert.kind for alert in rows(sessions, Alert)] == ["system_health"]


@pytest.mark.clause("W-23")
def test_incomplete_data_is_asked_for_once_more(sessions: Sessions) -> None:
    clock = ManualClock()
    posts = {"p1": Metrics(1000, None, 2)}
    fetcher, _ = platform(posts, clock)
    first, second = store(sessions, clock), store(sessions, clock)
    for report_id in (first, second):
        result = run_reconciliation(report_id, session_factory=sessions, fetcher=fetcher, clock=clock)
        assert (result.status, result.scheduled_retry_at) == (
            Status.INCOMPLETE_PLATFORM_DATA,
            moment(clock, 900),
        )
    clock.advance(900)
    again = run_reconciliation(first, session_factory=sessions, fetcher=fetcher, clock=clock, attempt=2)
    assert (again.status, again.is_final) == (Status.INCOMPLETE_PLATFORM_DATA, True)
    posts["p1"] = Metrics(1000, 30, 2)
    better = run_reconciliation(second, session_factory=sessions, fetcher=fetcher, clock=clock, attempt=2)
    assert (better.status, better.is_final) == (Status.MATCHED, True)
    attempts = [
        (one.attempt, one.missing_fields, round(one.confidence, 3)) for one in rows(sessions, ReportAttempt)
    ]
    assert attempts == [(1, "clicks", 0.667), (2, "clicks", 0.667), (1, "clicks", 0.667), (2, "", 1.0)]
    assert [(entry.report_id, entry.attempt) for entry in rows(sessions, TrustEntry)] == [(second, 2)]
    assert rows(sessions, Alert) == []


@pytest.mark.clause("W-23")
def test_incomplete_after_missing_is_asked_for_once_more(sessions: Sessions) -> None:
    """A report that ends without a verdict on its claims must have had its retries, or raise an alert."""
    clock = ManualClock()
    posts: dict[str, Metrics] = {}
    fetcher, _ = platform(posts, clock)
    report_id = store(sessions, clock)

    def attempt(number: int) -> ReconciliationResult:
        return run_reconciliation(
            report_id, session_factory=sessions, fetcher=fetcher, clock=clock, attempt=number
        )

    assert attempt(1).status is Status.MISSING_PLATFORM_DATA
    clock.advance(1800)
    posts["p1"] = Metrics(1000, None, 2)
    second = attempt(2)
    assert (second.status, second.scheduled_retry_at) == (Status.INCOMPLETE_PLATFORM_DATA, moment(clock, 900))
    clock.advance(900)
    third = attempt(3)
    assert (third.status, third.is_final) == (Status.INCOMPLETE_PLATFORM_DATA, True)


def test_a_platform_that_fails_is_missing_data_with_a_reason(sessions: Sessions) -> None:
    clock = ManualClock()
    fetcher, _ = platform({}, clock, failure_rate=1.0)
    reports = [store(sessions, clock) for _ in range(6)]
    for report_id in reports:
        result = run_reconciliation(report_id, session_factory=sessions, fetcher=fetcher, clock=clock)
        assert (result.status, result.is_final) == (Status.MISSING_PLATFORM_DATA, False)
    codes = [(one.error_code, one.error_detail) for one in rows(sessions, ReportAttempt)]
    assert codes[:5] == [("fetch_error", "the simulated platform is out of order")] * 5
    assert codes[5][0] == "circuit_open"
    assert {one.observed_at for one in rows(sessions, ReportAttempt)} == {None}


@pytest.mark.clause("W-24")
def test_a_second_delivery_changes_nothing_and_asks_nobody(sessions: Sessions) -> None:
    clock = ManualClock()
    posts = {"p1": Metrics(100, 30, 2)}
    fetcher, adapter = platform(posts, clock)
    report_id = store(sessions, clock)
    first = run_reconciliation(report_id, session_factory=sessions, fetcher=fetcher, clock=clock)
    before, kept = counts(sessions), report(sessions, report_id)
    clock.advance(3600)
    posts["p1"] = Metrics(1000, 30, 2)  # by now it would match
    for attempt in (1, 1, 2, 7):  # nothing is left to attempt, whatever the number
        again = run_reconciliation(
            report_id, session_factory=sessions, fetcher=fetcher, clock=clock, attempt=attempt
        )
        assert again == first._replace(applied=False, alert=None)
    assert counts(sessions) == before
    assert report(sessions, report_id).finished_at == kept.finished_at
    assert adapter.calls == 1


@pytest.mark.clause("W-24")
def test_many_deliveries_at_once_apply_once(sessions: Sessions) -> None:
    """All have read the report and asked the platform before the first one writes."""
    clock = ManualClock()
    together = threading.Barrier(6)

    class Slow(PlatformAdapter):
        def fetch(self, post_id: str) -> Observation:
            together.wait(30)
            return Observation(Metrics(100, 30, 2))

    fetcher = PlatformFetcher({"instagram": Slow()}, clock=clock)
    for _ in range(6):
        report_id = store(sessions, clock)

        def reconcile(_: int, report_id: int = report_id) -> Any:
            return run_reconciliation(report_id, session_factory=sessions, fetcher=fetcher, clock=clock)

        with ThreadPoolExecutor(6) as pool:
            results = list(pool.map(reconcile, range(6)))
        assert sorted(result.applied for result in results) == [False] * 5 + [True]
        assert {result.status for result in results} == {Status.AFFILIATE_OVERCLAIMED}
    assert counts(sessions) == {"attempts": 6, "trust_ledger": 6, "alerts": 6, "scheduled_attempts": 0}
    with sessions() as session:
        assert trust_scores(session) == {"ann": 0.0}  # not less: it is clamped when it is read


@pytest.mark.clause("W-24")
def test_killed_at_any_statement_leaves_nothing_and_the_next_delivery_all(
    sessions: Sessions, dsn: str
) -> None:
    clock = ManualClock()
    statements = ["attempts", "affiliate_reports", "trust_ledger", "alerts", "COMMIT"]
    reports = [store(sessions, clock) for _ in statements]
    cases = [f"{report_id}={statement}" for report_id, statement in zip(reports, statements, strict=True)]
    command = [sys.executable, killed.__file__, dsn, *cases]
    run = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert run.stdout.splitlines() == [f"{statement} 9" for statement in statements], run.stderr
    assert set(counts(sessions).values()) == {0}
    fetcher, _ = platform({"p1": Metrics(100, 30, 2)}, clock)
    for report_id in reports:
        assert (report(sessions, report_id).status, report(sessions, report_id).attempts) == (None, 0)
        assert run_reconciliation(report_id, session_factory=sessions, fetcher=fetcher, clock=clock).applied
    assert counts(sessions) == {"attempts": 5, "trust_ledger": 5, "alerts": 5, "scheduled_attempts": 0}


@pytest.mark.clause("W-24")
def test_in_the_callers_transaction_nothing_is_committed_for_them(sessions: Sessions) -> None:
    clock = ManualClock()
    fetcher, _ = platform({"p1": Metrics(100, 30, 2)}, clock)
    report_id = store(sessions, clock)
    with sessions() as session:
        assert run_reconciliation(report_id, session=session, fetcher=fetcher, clock=clock).applied
        session.rollback()
    assert set(counts(sessions).values()) == {0}
    with sessions() as session:
        assert run_reconciliation(report_id, session=session, fetcher=fetcher, clock=clock).applied
        session.commit()
    assert counts(sessions)["attempts"] == 1


def test_no_transaction_is_open_while_the_platform_is_asked(sessions: Sessions) -> None:
    clock = ManualClock()
    checked_out = []

    class Watching(PlatformAdapter):
        def fetch(self, post_id: str) -> Observation:
            checked_out.append(sessions.kw["bind"].pool.checkedout())
            return Observation(NOTHING)

    fetcher = PlatformFetcher({"instagram": Watching()}, clock=clock)
    report_id = store(sessions, clock)
    run_reconciliation(report_id, session_factory=sessions, fetcher=fetcher, clock=clock)
    with sessions() as session:
        run_reconciliation(report_id, session=session, fetcher=fetcher, clock=clock, attempt=2, commit=True)
    assert checked_out == [0, 0]


@pytest.mark.clause("W-12")
def test_logs_carry_the_correlation_id(sessions: Sessions, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "conquiet.reconcile")
    clock = ManualClock()
    fetcher, _ = platform({"p1": Metrics(100, 30, 2)}, clock)
    stored, given = store(sessions, clock, correlation_id="from-the-report"), store(sessions, clock)
    run_reconciliation(stored, session_factory=sessions, fetcher=fetcher, clock=clock)
    run_reconciliation(
        given, session_factory=sessions, fetcher=fetcher, clock=clock, correlation_id="from-the-job"
    )
    run_reconciliation(
        given, session_factory=sessions, fetcher=fetcher, clock=clock, correlation_id="from-the-job"
    )
    said = [
        (record.event, record.report_id, record.correlation_id)  # type: ignore[attr-defined]
        for record in caplog.records
        if record.name == "conquiet.reconcile"
    ]
    assert said == [
        ("report_reconciled", stored, "from-the-report"),
        ("alert_raised", stored, "from-the-report"),
        ("report_reconciled", given, "from-the-job"),
        ("alert_raised", given, "from-the-job"),
        ("report_redelivered", given, "from-the-job"),
    ]


def test_what_cannot_be_done_is_said(sessions: Sessions) -> None:
    clock = ManualClock()
    fetcher, adapter = platform({}, clock)
    report_id = store(sessions, clock)
    with pytest.raises(ReportNotFoundError, match="there is no report 999"):
        run_reconciliation(999, session_factory=sessions, fetcher=fetcher, clock=clock)
    with pytest.raises(AttemptOrderError, match=f"report {report_id} has had 0 attempts: number 2 cannot be"):
        run_reconciliation(report_id, session_factory=sessions, fetcher=fetcher, clock=clock, attempt=2)
    with pytest.raises(ReconcileConfigError, match="either session_factory or session"):
        run_reconciliation(report_id, fetcher=fetcher, clock=clock)
    with pytest.raises(ReconcileConfigError, match="attempt must be an int of at least 1, not 0"):
        run_reconciliation(report_id, session_factory=sessions, fetcher=fetcher, attempt=0)
    assert adapter.calls == 0


def test_times_come_back_as_aware_utc_to_the_microsecond(sessions: Sessions) -> None:
    clock = ManualClock()
    moment_ = datetime(2026, 1, 31, 12, 0, 0, 123_456, tzinfo=timezone(timedelta(hours=5)))
    report_id = store(sessions, clock, submitted_at=moment_)
    kept = report(sessions, report_id).submitted_at
    assert kept == moment_
    assert kept.utcoffset() == timedelta(0)
    with pytest.raises(StatementError, match="a time without a zone cannot be stored"):
        store(sessions, clock, submitted_at=moment_.replace(tzinfo=None))


def test_the_largest_claims_fit(sessions: Sessions) -> None:
    clock = ManualClock()
    most = 2**63 - 1
    fetcher, _ = platform({"p1": Metrics(0, most, most)}, clock)
    report_id = store(sessions, clock, (most, most, most))
    result = run_reconciliation(report_id, session_factory=sessions, fetcher=fetcher, clock=clock)
    assert (result.status, result.level) == (Status.AFFILIATE_OVERCLAIMED, Level.CRITICAL)
    assert report(sessions, report_id).claimed_views == most
    assert rows(sessions, ReportAttempt)[0].max_diff == float(most)


def test_many_processes_may_open_a_new_database_at_once(dsn: str) -> None:
    with ThreadPoolExecutor(8) as pool:
        opened = list(pool.map(open_database, [dsn] * 8))
    for sessions in opened:
        with sessions() as session:
            assert session.query(AffiliateReport).count() == 0
        sessions.kw["bind"].dispose()


@pytest.mark.parametrize(
    ("dsn", "complaint"),
    [
        ("nonsense", "the DSN is not a URL"),
        ("sqlite://", "reports are kept in a SQLite file"),
        ("sqlite:///:memory:", "reports are kept in a SQLite file"),
        ("mysql://app:hunter2@localhost/x", "not in mysql"),
    ],
)
def test_other_databases_are_refused(dsn: str, complaint: str) -> None:
    with pytest.raises(ReconcileConfigError, match=complaint) as refused:
        open_database(dsn)
    assert "hunter2" not in str(refused.value)
