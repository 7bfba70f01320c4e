"""The example timelines of the document, on a virtual clock: queue, worker, reconciliation, scheduler."""

from __future__ import annotations

import threading
from datetime import datetime

import pytest
from sqlalchemy.orm import Session, sessionmaker

from conquiet.local import LAST_EXCEPTIONS, PriorityDelayQueue, Worker, WorkerPool
from conquiet.reconcile import (
    Metrics,
    Reconciler,
    ReconciliationJob,
    ReconciliationResult,
    RetryScheduler,
    Status,
)
from conquiet.testing import ManualClock
from tests.integration.reconcile.reports import counts, moment, platform, report, store

Sessions = sessionmaker[Session]


class Diary:
    """A handler that records when each attempt ended, and lets the test wait for it."""

    def __init__(self, reconcile: Reconciler, clock: ManualClock) -> None:
        self._reconcile = reconcile
        self._clock = clock
        self._changed = threading.Condition()
        self.begun: list[float] = []
        self.entries: list[tuple[float, ReconciliationResult]] = []

    def __call__(self, job: ReconciliationJob, session: Session) -> None:
        self.begun.append(self._clock.monotonic())
        result = self._reconcile(job, session)
        with self._changed:
            self.entries.append((self._clock.monotonic(), result))
            self._changed.notify_all()

    def wait_for(self, count: int) -> tuple[float, ReconciliationResult]:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.entries) >= count, 30)
        return self.entries[count - 1]


@pytest.mark.clause("W-30")
def test_the_normal_flow(sessions: Sessions) -> None:
    clock = ManualClock()
    fetcher, _ = platform({"p1": Metrics(1000, 30, 2)}, clock, latency_seconds=0.118)
    queue = PriorityDelayQueue(clock=clock)
    diary = Diary(Reconciler(fetcher, sessions, clock=clock), clock)
    report_id = store(sessions, clock)
    queue.enqueue(ReconciliationJob(report_id, "normal"), priority="normal")  # T+00ms
    clock.advance(0.002)
    worker = Worker(queue, diary, session_factory=sessions)
    worker.start()
    clock.wait_for_sleepers()  # the worker has dequeued it, and waits for the platform
    assert diary.begun == [0.002]
    assert queue.snapshot()["depth"] == 0
    clock.advance_to(0.120)
    ended_at, result = diary.wait_for(1)
    assert (ended_at, result.status) == (0.120, Status.MATCHED)
    clock.wait_for_sleepers()  # T+121ms: the queue is empty, the worker waits without polling
    clock.advance_to(0.121)
    assert queue.snapshot() == {"depth": 0, "ready": 0, "scheduled": 0, "shutdown": False}
    assert worker.is_alive()
    assert worker.stop(30)
    assert report(sessions, report_id).status == "MATCHED"


@pytest.mark.clause("W-30", "W-22")
def test_the_delayed_retry(sessions: Sessions) -> None:
    clock = ManualClock()
    posts: dict[str, Metrics] = {}
    fetcher, adapter = platform(posts, clock)
    queue = PriorityDelayQueue(clock=clock)
    diary = Diary(Reconciler(fetcher, sessions, clock=clock), clock)
    scheduler = RetryScheduler(sessions, queue, clock=clock, look_ahead_seconds=None)
    report_id = store(sessions, clock, correlation_id="request-7")
    half_past: datetime = moment(clock, 1800)
    with Worker(queue, diary, session_factory=sessions, poll_timeout=86_400):
        queue.enqueue(ReconciliationJob(report_id, correlation_id="request-7"))
        _, first = diary.wait_for(1)
        assert (first.status, first.scheduled_retry_at) == (Status.MISSING_PLATFORM_DATA, half_past)
        assert queue.snapshot()["depth"] == 0  # it is not enqueued by itself

        clock.wait_for_sleepers()
        clock.advance(300)
        assert scheduler.run_once() == 1
        assert queue.snapshot() == {"depth": 1, "ready": 0, "scheduled": 1, "shutdown": False}
        posts["p1"] = Metrics(1000, 30, 2)
        clock.wait_for_sleepers()
        clock.advance_to(1799.999)
        assert adapter.calls == 1
        clock.advance_to(1800.0)
        ended_at, second = diary.wait_for(2)
        assert (ended_at, second.attempt, second.status) == (1800.0, 2, Status.MATCHED)
    assert (report(sessions, report_id).attempts, report(sessions, report_id).status) == (2, "MATCHED")
    assert counts(sessions) == {"attempts": 2, "trust_ledger": 1, "alerts": 0, "scheduled_attempts": 0}


@pytest.mark.clause("W-12")
def test_a_job_that_fails_is_told_with_its_report(sessions: Sessions) -> None:
    clock = ManualClock()
    fetcher, _ = platform({"p1": Metrics(1000, 30, 2)}, clock)
    queue = PriorityDelayQueue(clock=clock)
    diary = Diary(Reconciler(fetcher, sessions, clock=clock), clock)
    LAST_EXCEPTIONS.clear()
    queue.enqueue(ReconciliationJob(999))
    queue.enqueue(ReconciliationJob(store(sessions, clock)))
    with Worker(queue, diary, session_factory=sessions):
        _, result = diary.wait_for(1)
    assert result.applied
    assert [(one["report_id"], one["type"]) for one in LAST_EXCEPTIONS] == [(999, "ReportNotFoundError")]


def test_a_pool_reconciles_each_report_once(sessions: Sessions) -> None:
    clock = ManualClock()
    fetcher, adapter = platform({"p1": Metrics(1000, 30, 2)}, clock)
    queue = PriorityDelayQueue(clock=clock)
    LAST_EXCEPTIONS.clear()
    for _ in range(60):
        queue.enqueue(ReconciliationJob(store(sessions, clock)))
    queue.shutdown()
    with WorkerPool(queue, Reconciler(fetcher, sessions, clock=clock), 4, session_factory=sessions):
        pass
    assert LAST_EXCEPTIONS == []
    assert adapter.calls == 60
    assert counts(sessions) == {"attempts": 60, "trust_ledger": 60, "alerts": 0, "scheduled_attempts": 0}
