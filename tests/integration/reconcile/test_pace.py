"""A platform that asks for fewer calls gets fewer calls: attempts are put off, not used up."""

from __future__ import annotations

import itertools
import logging
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy.orm import Session, sessionmaker

from conquiet.connectors import LocalQueueConnector
from conquiet.errors import PlatformRateLimitError
from conquiet.local import CircuitBreakerRegistry, PriorityDelayQueue
from conquiet.reconcile import (
    Metrics,
    Observation,
    PlatformAdapter,
    PlatformFetcher,
    Reconciler,
    ReconciliationJob,
    ReconciliationTask,
    RetryScheduler,
)
from conquiet.reconcile.models import ReportAttempt, ScheduledAttempt
from conquiet.task.mixins.policies import ConsumerPolicy, ConsumerSteps, ProcessPolicy, RetryPolicy
from conquiet.testing import ManualClock
from tests.integration.reconcile.reports import counts, moment, report, rows, store

Sessions = sessionmaker[Session]


class Limited(PlatformAdapter):
    """Refuses as many calls as it is told to, with the wait that it asks for."""

    def __init__(self, refusals: int, retry_after: float | None) -> None:
        self.refusals, self.retry_after, self.calls = refusals, retry_after, 0

    def fetch(self, post_id: str) -> Observation:
        self.calls += 1
        if self.refusals:
            self.refusals -= 1
            raise PlatformRateLimitError("slowly", self.retry_after)
        return Observation(Metrics(1000, 30, 2))


def asked(adapter: PlatformAdapter, clock: ManualClock) -> PlatformFetcher:
    breakers = CircuitBreakerRegistry(clock=clock)
    return PlatformFetcher({"instagram": adapter, "other": Limited(0, None)}, breakers=breakers, clock=clock)


@pytest.mark.clause("W-34")
def test_attempts_are_put_off_until_the_platform_may_be_asked(
    sessions: Sessions, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "conquiet")
    clock, queue, adapter = ManualClock(), PriorityDelayQueue(), Limited(1, 30.0)
    reconciler = Reconciler(asked(adapter, clock), sessions, clock=clock)
    reports = [store(sessions, clock) for _ in range(4)]
    elsewhere = store(sessions, clock, platform="other")
    results = [reconciler(ReconciliationJob(one)) for one in reports]
    assert adapter.calls == 1  # the others are not asked for
    assert [result.error_code for result in results] == ["rate_limited"] + ["postponed"] * 3
    assert not any(result.applied for result in results[1:])
    assert reconciler(ReconciliationJob(elsewhere)).applied  # other platforms are not affected
    assert [report(sessions, one).attempts for one in reports] == [1, 0, 0, 0]
    due = {row.report_id: row.due_at for row in rows(sessions, ScheduledAttempt)}
    assert (
        due
        == {
            reports[0]: moment(clock, 1800),  # its second attempt
            **{one: moment(clock, 30 + number) for number, one in enumerate(reports[1:])},
        }
    )
    assert "asks for fewer calls: the next one in 30 s, then one each 1 s" in caplog.text
    assert f"report {reports[1]}, attempt 1: postponed until" in caplog.text

    scheduler = RetryScheduler(sessions, queue, clock=clock, look_ahead_seconds=0)
    clock.advance(29)
    assert scheduler.run_once() == 0
    clock.advance(1)
    for _ in reports[1:]:
        assert scheduler.run_once() == 1
        item = queue.dequeue(block=False)
        assert item is not None
        assert reconciler(item.job).applied
        clock.advance(1)
    assert adapter.calls == 4
    assert [report(sessions, one).status for one in reports[1:]] == ["MATCHED"] * 3
    assert len(rows(sessions, ReportAttempt)) == 5


@pytest.mark.clause("W-34")
def test_the_delay_grows_while_it_asks_and_decays_when_it_does_not(sessions: Sessions) -> None:
    """Forty reports at a platform that refuses four times: every call is apart, and in the end they are not."""
    clock, adapter = ManualClock(), Limited(4, None)
    fetcher = asked(adapter, clock)
    reconciler = Reconciler(fetcher, sessions, clock=clock)
    queue = PriorityDelayQueue(clock=clock)
    for one in [store(sessions, clock) for _ in range(40)]:
        queue.enqueue(ReconciliationJob(one))
    scheduler = RetryScheduler(sessions, queue, clock=clock, look_ahead_seconds=0)
    calls: list[tuple[float, int]] = []
    while adapter.calls < 40 and clock.monotonic() < 1_000:
        while (item := queue.dequeue(block=False)) is not None:
            before = adapter.calls
            reconciler(item.job)
            if adapter.calls > before:
                calls.append((clock.monotonic(), before))
        clock.advance(1.0)
        scheduler.run_once()
    begun = [at for at, _ in calls]
    gaps = [later - earlier for earlier, later in itertools.pairwise(begun)]
    assert gaps[:3] == [1.0, 2.0, 4.0]
    assert gaps[3] == 8.0  # after the fourth refusal
    assert gaps[4:7] == [4.0, 2.0, 1.0]  # each answer halves it
    assert adapter.calls == 40
    assert fetcher.delay_for("instagram") == 0.0
    assert clock.monotonic() < 120


@pytest.mark.clause("W-34")
@pytest.mark.parametrize(("retry_after", "next_in"), [(None, 1800), (60.0, 1800), (3000.0, 3000)])
def test_the_next_attempt_is_not_before_the_time_it_asked_for(
    sessions: Sessions, retry_after: float | None, next_in: float
) -> None:
    clock = ManualClock()
    reconciler = Reconciler(asked(Limited(1, retry_after), clock), sessions, clock=clock)
    result = reconciler(ReconciliationJob(store(sessions, clock)))
    assert result.scheduled_retry_at == moment(clock) + timedelta(seconds=next_in)


@pytest.mark.clause("W-34")
def test_what_is_asked_for_does_not_extend_the_day_of_a_report(sessions: Sessions) -> None:
    clock = ManualClock()
    reconciler = Reconciler(asked(Limited(1, 3600.0), clock), sessions, clock=clock)
    old = store(sessions, clock, age_seconds=86_400 - 1_900)  # half an hour would be in time, an hour is not
    assert reconciler(ReconciliationJob(old)).scheduled_retry_at is None


@pytest.mark.clause("W-34")
def test_a_put_off_attempt_that_was_made_meanwhile_is_not_made_again(sessions: Sessions) -> None:
    clock, adapter = ManualClock(), Limited(1, 30.0)
    fetcher = asked(adapter, clock)
    reconciler = Reconciler(fetcher, sessions, clock=clock)
    first, second = store(sessions, clock), store(sessions, clock)
    reconciler(ReconciliationJob(first))
    job = ReconciliationJob(second)
    assert reconciler(job).error_code == "postponed"
    assert reconciler(job).error_code == "postponed"  # delivered twice: still one row
    assert counts(sessions)["scheduled_attempts"] == 2
    clock.advance(30)
    assert reconciler(job).applied
    assert not reconciler(job).applied
    assert [row.report_id for row in rows(sessions, ScheduledAttempt)] == [first]


@pytest.mark.clause("W-34")
def test_the_engine_does_not_ask_before_the_time_either(sessions: Sessions) -> None:
    clock, queue, adapter = ManualClock(), PriorityDelayQueue(), Limited(1, 3000.0)
    task = ReconciliationTask(asked(adapter, clock), sessions, clock=clock)
    reports = [store(sessions, clock) for _ in range(3)]
    for one in reports:
        queue.enqueue(ReconciliationJob(one))
    once = ConsumerPolicy(steps=ConsumerSteps(process=ProcessPolicy(retry=RetryPolicy(max_attempts=1))))
    ended = task.consume_transactions(LocalQueueConnector(queue, poll_timeout=0), once)
    assert ended.failed == 3
    assert adapter.calls == 1
    attempts: list[Any] = rows(sessions, ReportAttempt)
    assert [attempt.error_code for attempt in attempts] == ["rate_limited"] * 3
    assert "it is not asked for another" in attempts[1].error_detail
    assert all(attempt.scheduled_retry_at >= moment(clock, 3000) for attempt in attempts)


@pytest.mark.clause("W-34")
def test_on_the_engine_attempts_can_be_put_off_too(sessions: Sessions) -> None:
    clock, queue, adapter = ManualClock(), PriorityDelayQueue(), Limited(1, 30.0)
    task = ReconciliationTask(asked(adapter, clock), sessions, clock=clock, postpone=True)
    reports = [store(sessions, clock) for _ in range(3)]
    for one in reports:
        queue.enqueue(ReconciliationJob(one))
    connector = LocalQueueConnector(queue, poll_timeout=0)
    ended = task.consume_transactions(connector)
    assert (ended.succeeded, ended.failed) == (2, 1)  # only the first was a call
    assert [report(sessions, one).attempts for one in reports] == [1, 0, 0]
    scheduler = RetryScheduler(sessions, queue, clock=clock, look_ahead_seconds=0)
    for _ in range(32):
        clock.advance(1)
        scheduler.run_once()
        task.consume_transactions(connector)
    assert [report(sessions, one).status for one in reports[1:]] == ["MATCHED"] * 2
    assert adapter.calls == 3
