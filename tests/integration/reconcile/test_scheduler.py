"""From the database into a queue: retries with their remaining delay, and what a crash left behind."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy.orm import Session, sessionmaker

from conquiet.errors import QueueShutdownError
from conquiet.local import PriorityDelayQueue, QueueSettings
from conquiet.reconcile import (
    Metrics,
    Reconciler,
    ReconciliationJob,
    RetryScheduler,
    resume,
    run_reconciliation,
)
from conquiet.reconcile.models import ScheduledAttempt
from conquiet.testing import ManualClock
from tests.integration.reconcile import abandoned
from tests.integration.reconcile.reports import counts, moment, platform, report, rows, store

Sessions = sessionmaker[Session]


def drained(queue: PriorityDelayQueue) -> list[ReconciliationJob]:
    jobs = []
    while (item := queue.dequeue(block=False)) is not None:
        jobs.append(item.job)
    return jobs


def missing(sessions: Sessions, clock: ManualClock, **columns: Any) -> int:
    """A report whose first attempt found nothing: its second is due in half an hour."""
    report_id = store(sessions, clock, **columns)
    run_reconciliation(report_id, session_factory=sessions, fetcher=platform({}, clock)[0], clock=clock)
    return report_id


@pytest.mark.clause("W-22")
def test_a_retry_is_enqueued_once_with_the_remaining_delay(sessions: Sessions) -> None:
    clock = ManualClock()
    queue = PriorityDelayQueue(clock=clock)
    scheduler = RetryScheduler(sessions, queue, clock=clock, look_ahead_seconds=None)
    report_id = missing(sessions, clock, priority="high", correlation_id="request-7")
    due_at = report(sessions, report_id).scheduled_retry_at
    clock.advance(600)
    assert scheduler.run_once(moment(clock)) == 1
    assert [scheduler.run_once(), scheduler.run_once(moment(clock, 10**6))] == [0, 0]
    assert queue.snapshot() == {"depth": 1, "ready": 0, "scheduled": 1, "shutdown": False}
    clock.advance(1199.9)
    assert drained(queue) == []
    clock.advance(0.1)
    item = queue.dequeue(block=False)
    assert item is not None
    assert item.job == ReconciliationJob(report_id, "high", due_at, "request-7", attempt=2)
    assert item.priority_label == "high"
    assert item.ready_at == due_at == moment(clock)


@pytest.mark.clause("W-22")
def test_what_is_overdue_is_enqueued_at_once_in_the_order_it_was_due(sessions: Sessions) -> None:
    clock = ManualClock()
    queue = PriorityDelayQueue(clock=clock)
    reports = []
    for _ in range(7):
        reports.append(missing(sessions, clock))
        clock.advance(60)
    clock.advance(86_400)
    assert (
        RetryScheduler(sessions, queue, clock=clock, look_ahead_seconds=None, batch_size=3).run_once() == 7
    )  # in three batches
    assert [job.affiliate_report_id for job in drained(queue)] == reports


@pytest.mark.clause("W-22")
def test_two_schedulers_at_once_share_the_work(sessions: Sessions) -> None:
    clock = ManualClock()
    for _ in range(120):
        missing(sessions, clock)
    queues = [PriorityDelayQueue(clock=clock) for _ in range(4)]
    start = threading.Barrier(4)

    def run(queue: PriorityDelayQueue) -> int:
        scheduler = RetryScheduler(sessions, queue, clock=clock, look_ahead_seconds=None, batch_size=7)
        start.wait(30)
        return scheduler.run_once()

    with ThreadPoolExecutor(4) as pool:
        totals = list(pool.map(run, queues))
    assert sum(totals) == 120
    clock.advance(3600)
    jobs = [job.affiliate_report_id for queue in queues for job in drained(queue)]
    assert len(jobs) == len(set(jobs)) == 120


@pytest.mark.clause("W-22")
def test_a_full_queue_leaves_the_rest_for_the_next_turn(sessions: Sessions) -> None:
    clock = ManualClock()
    queue = PriorityDelayQueue(QueueSettings(max_in_memory=3), clock=clock)
    scheduler = RetryScheduler(sessions, queue, clock=clock, queue_share=1, platform_share=1)
    reports = [missing(sessions, clock) for _ in range(8)]
    clock.advance(3600)
    taken: list[int] = []
    for expected in (3, 3, 2, 0):
        assert scheduler.run_once() == expected
        taken += [job.affiliate_report_id for job in drained(queue)]
    assert taken == reports


@pytest.mark.clause("W-22")
def test_a_queue_that_refuses_keeps_nothing_taken(sessions: Sessions) -> None:
    clock = ManualClock()
    queue = PriorityDelayQueue(clock=clock)
    queue.shutdown()
    missing(sessions, clock)
    with pytest.raises(QueueShutdownError):
        RetryScheduler(sessions, queue, clock=clock, look_ahead_seconds=None).run_once()
    assert (
        RetryScheduler(
            sessions, PriorityDelayQueue(clock=clock), clock=clock, look_ahead_seconds=None
        ).run_once()
        == 1
    )


def test_looking_ahead_leaves_later_ones_in_the_database(sessions: Sessions) -> None:
    clock = ManualClock()
    queue = PriorityDelayQueue(clock=clock)
    scheduler = RetryScheduler(sessions, queue, clock=clock, look_ahead_seconds=0)
    missing(sessions, clock)
    clock.advance(1799)
    assert scheduler.run_once() == 0
    clock.advance(1)
    assert scheduler.run_once() == 1
    assert queue.snapshot()["ready"] == 1


def test_run_goes_on_after_a_failure_and_ends_at_stop(
    sessions: Sessions, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    queue = PriorityDelayQueue(clock=clock)
    broken = threading.Event()

    def flaky() -> Session:
        if broken.is_set():
            raise OSError("the database at postgresql://app:hunter2@db/x is away")
        return sessions()

    scheduler = RetryScheduler(flaky, queue, clock=clock, look_ahead_seconds=None)
    running = threading.Thread(target=scheduler.run, args=(5.0,))
    broken.set()
    running.start()
    clock.wait_for_sleepers()
    broken.clear()
    missing(sessions, clock)
    clock.advance(5.0)
    clock.wait_for_sleepers()
    while queue.depth == 0:  # its turn is about to come
        clock.wait_for_sleepers()
    scheduler.stop()
    running.join(30)
    assert not running.is_alive()
    (failure,) = [record for record in caplog.records if getattr(record, "event", "") == "scheduler_failed"]
    assert "hunter2" not in failure.getMessage()


@pytest.mark.clause("W-29")
def test_whatever_a_crash_left_unfinished_is_enqueued_again(sessions: Sessions) -> None:
    clock = ManualClock()
    fetcher, _ = platform({"p1": Metrics(1000, 30, 2)}, clock)
    stored_only = store(sessions, clock, priority="high")
    lost_retry, waiting_retry = missing(sessions, clock), None
    RetryScheduler(
        sessions, PriorityDelayQueue(clock=clock), clock=clock, look_ahead_seconds=None
    ).run_once()  # into memory that is then lost
    waiting_retry = missing(sessions, clock)
    finished = store(sessions, clock)
    run_reconciliation(finished, session_factory=sessions, fetcher=fetcher, clock=clock)

    clock.advance(60)
    assert resume(sessions, moment(clock)) == 2
    assert resume(sessions, moment(clock)) == 0  # they are already waiting
    queue = PriorityDelayQueue(clock=clock)
    assert RetryScheduler(sessions, queue, clock=clock, look_ahead_seconds=None).run_once() == 3
    assert [(job.affiliate_report_id, job.attempt, job.priority) for job in drained(queue)] == [
        (stored_only, 1, "high")
    ]
    clock.advance(29 * 60)  # the retries kept their due times
    later = drained(queue)
    assert sorted((job.affiliate_report_id, job.attempt) for job in later) == [
        (lost_retry, 2),
        (waiting_retry, 2),
    ]


@pytest.mark.clause("W-29", "W-24")
def test_resuming_beside_a_live_process_applies_nothing_twice(sessions: Sessions) -> None:
    clock = ManualClock()
    fetcher, _ = platform({"p1": Metrics(100, 30, 2)}, clock)
    reconcile = Reconciler(fetcher, sessions, clock=clock)
    alive, started = PriorityDelayQueue(clock=clock), PriorityDelayQueue(clock=clock)
    for _ in range(10):
        alive.enqueue(ReconciliationJob(store(sessions, clock)))
    assert resume(sessions, moment(clock)) == 10
    assert RetryScheduler(sessions, started, clock=clock).run_once() == 10
    applied = [reconcile(job).applied for queue in (started, alive) for job in drained(queue)]
    assert applied == [True] * 10 + [False] * 10
    assert counts(sessions) == {"attempts": 10, "trust_ledger": 10, "alerts": 10, "scheduled_attempts": 0}


@pytest.mark.clause("W-29")
def test_more_than_a_queue_holds_is_resumed_bit_by_bit(sessions: Sessions) -> None:
    clock = ManualClock()
    fetcher, _ = platform({"p1": Metrics(1000, 30, 2)}, clock)
    reconcile = Reconciler(fetcher, sessions, clock=clock)
    reports = [store(sessions, clock) for _ in range(25)]
    queue = PriorityDelayQueue(QueueSettings(max_in_memory=10), clock=clock)
    scheduler = RetryScheduler(sessions, queue, clock=clock, look_ahead_seconds=None)
    assert resume(sessions, moment(clock)) == 25
    done: list[int] = []
    while scheduler.run_once():
        done += [reconcile(job).report_id for job in drained(queue)]
    assert sorted(done) == reports
    assert rows(sessions, ScheduledAttempt) == []


@pytest.mark.clause("W-29")
def test_a_killed_process_loses_no_report(sessions: Sessions, dsn: str) -> None:
    """It had 30 reports in its queue, and was killed while its workers ran."""
    clock = ManualClock()
    reports = [store(sessions, clock) for _ in range(30)]
    command = [sys.executable, abandoned.__file__, dsn, "12", *map(str, reports)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert run.returncode == -9, run.stderr
    done = counts(sessions)["attempts"]
    assert 1 <= done < 30
    assert resume(sessions, moment(clock)) == 30 - done
    queue = PriorityDelayQueue(clock=clock)
    RetryScheduler(sessions, queue, clock=clock, look_ahead_seconds=None).run_once()
    fetcher, _ = platform({"p1": Metrics(1000, 30, 2)}, clock)
    for job in drained(queue):
        assert Reconciler(fetcher, sessions, clock=clock)(job).applied
    assert {report(sessions, one).status for one in reports} == {"MATCHED"}
    assert counts(sessions) == {"attempts": 30, "trust_ledger": 30, "alerts": 0, "scheduled_attempts": 0}


def test_a_look_now_and_then_finds_only_what_is_long_overdue(sessions: Sessions) -> None:
    clock = ManualClock()
    old, retried = store(sessions, clock), missing(sessions, clock)
    queue = PriorityDelayQueue(clock=clock)
    scheduler = RetryScheduler(sessions, queue, clock=clock, look_ahead_seconds=None)
    scheduler.run_once()  # the retry is in memory
    clock.advance(3600)
    young = store(sessions, clock)
    assert resume(sessions, moment(clock), overdue_seconds=3600) == 1
    clock.advance(1800)
    assert resume(sessions, moment(clock), overdue_seconds=3600) == 1
    waiting = [one.report_id for one in rows(sessions, ScheduledAttempt) if one.enqueued_at is None]
    assert waiting == [old, retried]
    assert young not in waiting
