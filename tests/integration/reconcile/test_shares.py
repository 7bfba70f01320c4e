"""What one platform's outage leaves for the others: retries wait in the database, and take only a share of a queue."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text, update
from sqlalchemy.orm import Session, sessionmaker

from conquiet.connectors import JobConnector
from conquiet.errors import ReconcileConfigError, UnknownPriorityError
from conquiet.jobs import open_store
from conquiet.local import CircuitBreakerRegistry, PriorityDelayQueue, QueueSettings
from conquiet.reconcile import (
    JobStoreQueue,
    Metrics,
    PlatformAdapter,
    PlatformError,
    PlatformFetcher,
    Reconciler,
    ReconciliationTask,
    RetryScheduler,
    SimulatedAdapter,
    open_database,
)
from conquiet.reconcile.intake.desk import IntakeDesk
from conquiet.reconcile.models import AffiliateReport, ScheduledAttempt
from conquiet.reconcile.scheduler import schedule_attempt
from conquiet.testing import ManualClock
from tests.integration.reconcile.reports import moment, report, rows, store

Sessions = sessionmaker[Session]


class Dead(PlatformAdapter):
    def fetch(self, post_id: str) -> Any:
        raise PlatformError("out of order")


def both(clock: ManualClock) -> PlatformFetcher:
    """A platform that is dead, and a healthy one."""
    healthy = SimulatedAdapter(posts={"p1": Metrics(1000, 30, 2)}, clock=clock)
    breakers = CircuitBreakerRegistry(clock=clock)
    return PlatformFetcher({"dead": Dead(), "healthy": healthy}, breakers=breakers, clock=clock)


def work(queue: PriorityDelayQueue, reconcile: Reconciler) -> list[str]:
    """Make every attempt that is ready, and return the names of their platforms."""
    made = []
    while (item := queue.dequeue(block=False)) is not None:
        result = reconcile(item.job)
        made.append("dead" if result.error_code else "healthy")
    return made


def due(sessions: Sessions, clock: ManualClock, platform: str, count: int = 1, **columns: Any) -> list[int]:
    """Reports of a platform, each with an attempt that is due now."""
    ids = [store(sessions, clock, platform=platform, **columns) for _ in range(count)]
    with sessions() as session:
        for report_id in ids:
            schedule_attempt(session, report_id, 1, moment(clock))
        session.commit()
    return ids


def depth_by_platform(sessions: Sessions, queue: PriorityDelayQueue) -> dict[str, int]:
    platforms = {one.id: one.platform for one in rows(sessions, AffiliateReport)}
    found: dict[str, int] = {}
    for item in queue.items():
        name = platforms[item.job.affiliate_report_id]
        found[name] = found.get(name, 0) + 1
    return found


@pytest.mark.clause("W-35")
def test_the_outage_of_one_platform_does_not_close_the_intake(sessions: Sessions) -> None:
    """Four times as many of its reports as the queue has places; half an hour later, and all through its retries."""
    clock = ManualClock()
    queue = PriorityDelayQueue(QueueSettings(max_in_memory=40), clock)
    fetcher = both(clock)
    reconcile = Reconciler(fetcher, sessions, clock=clock)
    scheduler = RetryScheduler(sessions, queue, clock=clock)
    desk = IntakeDesk(sessions, queue, platforms=fetcher.platforms, clock=clock)

    def submit(platform: str, number: int) -> None:
        claims = {"claimed_views": 1000, "claimed_clicks": 30, "claimed_conversions": 2}
        names = {"affiliate_id": f"{platform} {number}", "platform": platform, "post_id": "p1"}
        desk.submit(names | claims)

    for number in range(160):
        submit("dead", number)
        work(queue, reconcile)
    scheduler.run_once()
    assert queue.depth == 0  # they wait in the database
    for number in range(40):
        clock.advance(60)
        scheduler.run_once()  # the workers stand still in this minute
        assert queue.depth <= 20
        submit("healthy", number)
        made = work(queue, reconcile)
        assert made.count("healthy") == 1
        assert made.count("dead") <= 10


@pytest.mark.clause("W-35")
def test_platforms_share_the_queue_and_those_with_little_are_not_held_up(sessions: Sessions) -> None:
    clock = ManualClock()
    queue = PriorityDelayQueue(QueueSettings(max_in_memory=40), clock)
    scheduler = RetryScheduler(sessions, queue, clock=clock, batch_size=7)
    due(sessions, clock, "a", 30)
    due(sessions, clock, "b", 3)  # behind those of a
    assert scheduler.run_once() == 13
    assert depth_by_platform(sessions, queue) == {"a": 10, "b": 3}
    due(sessions, clock, "c", 30)
    assert scheduler.run_once() == 7  # all together at most half
    assert depth_by_platform(sessions, queue) == {"a": 10, "b": 3, "c": 7}
    for _ in range(4):
        assert queue.dequeue(block=False) is not None
    assert scheduler.run_once() == 4  # room again for what was taken
    assert scheduler.run_once() == 0
    assert depth_by_platform(sessions, queue) == {"a": 10, "b": 3, "c": 7}


@pytest.mark.clause("W-22", "W-35")
def test_a_retry_stays_in_the_database_until_it_is_nearly_due(sessions: Sessions) -> None:
    clock = ManualClock()
    queue = PriorityDelayQueue(clock=clock)
    scheduler = RetryScheduler(sessions, queue, clock=clock)
    report_id = store(sessions, clock)
    with sessions() as session:
        schedule_attempt(session, report_id, 1, moment(clock, 1800))
        session.commit()
    clock.advance(1739)
    assert scheduler.run_once() == 0
    clock.advance(1)
    assert scheduler.run_once() == 1
    (item,) = queue.items()
    assert item.ready_at == moment(clock, 60)


@pytest.mark.clause("W-35")
def test_a_job_store_is_shared_by_platforms_too(sessions: Sessions, tmp_path: Path) -> None:
    clock = ManualClock()
    with open_store(f"sqlite:///{tmp_path}/jobs.db", clock=clock) as jobs:
        queue = JobStoreQueue(jobs, max_depth=40, clock=clock)
        scheduler = RetryScheduler(sessions, queue, clock=clock)
        due(sessions, clock, "dead", 30)
        due(sessions, clock, "healthy", 3)
        assert scheduler.run_once() == 13
        clock.advance(1)
        assert scheduler.run_once() == 0
        task = ReconciliationTask(both(clock), sessions, clock=clock)
        task.consume_transactions(JobConnector(jobs, "reconciliation"))
        clock.advance(1)
        assert scheduler.run_once() == 10


@pytest.mark.parametrize("share", [0, -0.5, 1.5, "half", None, True, float("nan")])
@pytest.mark.parametrize("name", ["queue_share", "platform_share"])
def test_shares_are_shares(sessions: Sessions, name: str, share: Any) -> None:
    with pytest.raises(ReconcileConfigError, match=f"{name} must be a share above 0, at most 1"):
        RetryScheduler(sessions, PriorityDelayQueue(), **{name: share})


@pytest.mark.parametrize(
    "wrong",
    [{"look_ahead_seconds": "60"}, {"look_ahead_seconds": -1}, {"batch_size": 0}, {"overdue_seconds": 0}],
)
def test_wrong_settings_are_named(sessions: Sessions, wrong: dict[str, Any]) -> None:
    with pytest.raises(ReconcileConfigError, match=next(iter(wrong))):
        RetryScheduler(sessions, PriorityDelayQueue(), **wrong)


@pytest.mark.clause("W-22")
def test_a_priority_that_no_longer_exists_stops_nobody(
    sessions: Sessions, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    queue = PriorityDelayQueue(clock=clock)
    scheduler = RetryScheduler(sessions, queue, clock=clock)
    bad = due(sessions, clock, "instagram", priority="urgent")
    good = due(sessions, clock, "instagram", 3)
    assert scheduler.run_once() == 4
    taken = [(item.job.affiliate_report_id, item.priority_label) for item in queue.items()]
    assert sorted(taken) == [(report_id, "normal") for report_id in (*bad, *good)]
    (told,) = [one for one in caplog.records if one.levelno == logging.WARNING]
    assert f"report {bad[0]}, attempt 1: enqueued with priority normal: there is no priority 'urgent'" in (
        told.getMessage()
    )


@pytest.mark.clause("W-22")
def test_a_row_that_the_queue_refuses_is_passed_over(
    sessions: Sessions, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    queue = PriorityDelayQueue(QueueSettings(priorities={"high": 0}), clock=clock)
    scheduler = RetryScheduler(sessions, queue, clock=clock, batch_size=2)
    bad = due(sessions, clock, "instagram", 5, priority="urgent")  # more than a batch
    good = due(sessions, clock, "instagram", 3, priority="high")
    assert scheduler.run_once() == 3
    assert sorted(item.job.affiliate_report_id for item in queue.items()) == good
    refused = [one for one in caplog.records if getattr(one, "event", "") == "attempt_refused"]
    assert [one.report_id for one in refused] == bad  # type: ignore[attr-defined]
    with pytest.raises(UnknownPriorityError):  # nothing else is left: it is said
        scheduler.run_once()
    assert len([one for one in caplog.records if getattr(one, "event", "") == "attempt_refused"]) == 5
    with sessions() as session:
        session.execute(update(AffiliateReport).values(priority="high"))
        session.commit()
    assert scheduler.run_once() == 5


def test_a_time_that_cannot_be_read_stops_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    sessions = open_database(f"sqlite:///{tmp_path}/reports.db")
    due(sessions, clock, "instagram", 4)
    with sessions() as session:
        session.execute(text("UPDATE scheduled_attempts SET due_at = '1 o''clock' WHERE report_id = 2"))
        session.commit()
    queue = PriorityDelayQueue(clock=clock)
    assert RetryScheduler(sessions, queue, clock=clock).run_once() == 3
    assert "a scheduled attempt cannot be read" in caplog.text
    sessions.kw["bind"].dispose()


@pytest.mark.clause("W-22")
def test_reports_and_jobs_in_one_file_do_not_lock_each_other_out(tmp_path: Path) -> None:
    clock = ManualClock()
    dsn = f"sqlite:///{tmp_path}/one.db"
    sessions = open_database(dsn)
    with open_store(dsn, clock=clock) as jobs:
        queue = JobStoreQueue(jobs, clock=clock)
        scheduler = RetryScheduler(sessions, queue, clock=clock, look_ahead_seconds=None, batch_size=2)
        report_ids = due(sessions, clock, "dead", 5)
        task = ReconciliationTask(both(clock), sessions, clock=clock)
        for attempt in range(1, 6):
            assert scheduler.run_once() == 5
            assert scheduler.run_once() == 0
            clock.advance(86_400 if attempt == 5 else 1_800 * (attempt - 1))
            task.consume_transactions(JobConnector(jobs, "reconciliation"))
            assert {report(sessions, one).attempts for one in report_ids} == {attempt}
    assert rows(sessions, ScheduledAttempt) == []
    sessions.kw["bind"].dispose()


def test_an_attempt_enqueued_before_a_crash_is_not_enqueued_twice(tmp_path: Path) -> None:
    """On SQLite, where a job is enqueued before its row is taken."""
    clock = ManualClock()
    dsn = f"sqlite:///{tmp_path}/one.db"
    sessions = open_database(dsn)
    with open_store(dsn, clock=clock) as jobs:
        due(sessions, clock, "healthy", 3)
        queue = JobStoreQueue(jobs, clock=clock)

        class Dying(JobStoreQueue):
            def enqueue(self, job: Any, priority: str = "normal", delay_seconds: float = 0.0) -> None:
                super().enqueue(job, priority, delay_seconds)
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            RetryScheduler(sessions, Dying(jobs, clock=clock), clock=clock).run_once()
        assert RetryScheduler(sessions, queue, clock=clock).run_once() == 3
        assert len(jobs.list()) == 3
    sessions.kw["bind"].dispose()
