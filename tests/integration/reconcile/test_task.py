"""The same task on the in-process queue, on leased jobs and on a Redis stream: the same verdicts, once each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.orm import Session, sessionmaker

from conquiet.connectors import IterableConnector, JobConnector, LocalQueueConnector, StreamConnector
from conquiet.embedded import RedisServer
from conquiet.errors import ReconcileConfigError
from conquiet.jobs import JobState, RetrySchedule, open_store
from conquiet.local import PriorityDelayQueue
from conquiet.queue import QueueConfig, RedisStreamsQueue, connect
from conquiet.reconcile import (
    JobQueue,
    JobStoreQueue,
    Metrics,
    ReconciliationJob,
    ReconciliationTask,
    RetryScheduler,
    StreamQueue,
    resume,
    trust_scores,
)
from conquiet.reconcile.models import AffiliateReport, ReportAttempt
from conquiet.task.mixins.policies import (
    BatchPolicy,
    ConcurrencyPolicy,
    ConsumerLoopPolicy,
    ConsumerPolicy,
    ConsumerSteps,
    ProcessPolicy,
    RetryPolicy,
)
from conquiet.testing import ManualClock
from tests.integration.reconcile.reports import counts, moment, platform, report, rows, store

Sessions = sessionmaker[Session]
Source = tuple[JobQueue, Callable[[], Any]]
POSTS = {
    "matched": Metrics(1000, 30, 2),
    "invented": Metrics(100, 30, 2),
    "partly": Metrics(1000, None, 2),
    "lower": Metrics(2000, 30, 2),
}
STATUSES = {
    "matched": "MATCHED",
    "invented": "AFFILIATE_OVERCLAIMED",
    "partly": "INCOMPLETE_PLATFORM_DATA",
    "lower": "DISCREPANCY_HIGH",
    "unknown": "MISSING_PLATFORM_DATA",
}
FOUR_AT_A_TIME = ConsumerLoopPolicy(batch=BatchPolicy(size=4), concurrency=ConcurrencyPolicy(value=4))


def patient(attempts: int) -> ConsumerPolicy:
    process = ProcessPolicy(retry=RetryPolicy(max_attempts=attempts))
    return ConsumerPolicy(loop=FOUR_AT_A_TIME, steps=ConsumerSteps(process=process))


@pytest.fixture(scope="module")
def one_redis() -> Iterator[RedisServer]:
    with RedisServer() as server:  # other tests run streams on every available server
        yield server


@pytest.fixture(params=["local", "jobs", "streams"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Source]:
    """A queue to enqueue into, and a connector that reads from it."""
    if request.param == "local":
        queue = PriorityDelayQueue()
        yield queue, lambda: LocalQueueConnector(queue, poll_timeout=0)
    elif request.param == "jobs":
        retry = RetrySchedule(base_seconds=0.0, max_seconds=0.0)
        with open_store(f"sqlite:///{tmp_path}/jobs.db", retry=retry) as jobs:
            yield JobStoreQueue(jobs), lambda: JobConnector(jobs, "reconciliation")
    else:
        config = QueueConfig(f"reconciliation {tmp_path.name}", "workers", "one", block_ms=20)
        with connect(request.getfixturevalue("one_redis").url) as redis:
            stream = RedisStreamsQueue(redis, config)
            yield StreamQueue(stream), lambda: StreamConnector(stream)


@pytest.mark.clause("W-23", "W-24")
def test_the_same_work_wherever_it_comes_from(sessions: Sessions, source: Source) -> None:
    queue, connector = source
    clock = ManualClock()
    fetcher, adapter = platform(POSTS, clock)
    task = ReconciliationTask(fetcher, sessions, clock=clock)
    reports = {post: store(sessions, clock, post_id=post, affiliate_id=post) for post in STATUSES}
    for report_id in reports.values():
        queue.enqueue(ReconciliationJob(report_id, correlation_id="request-7"))
    ended = task.consume_transactions(connector(), patient(1))
    assert (ended.succeeded, ended.failed, ended.unsettled) == (5, 0, 0)
    assert {post: report(sessions, one).status for post, one in reports.items()} == STATUSES
    assert adapter.calls == 5

    scheduler = RetryScheduler(sessions, queue, clock=clock, look_ahead_seconds=0)
    clock.advance(1800)
    assert scheduler.run_once() == 2  # the missing one and the incomplete one, which are complete by now
    POSTS_LATER = {**POSTS, "partly": Metrics(1000, 30, 2), "unknown": Metrics(1000, 30, 2)}
    task = ReconciliationTask(platform(POSTS_LATER, clock)[0], sessions, clock=clock)
    assert task.consume_transactions(connector(), patient(1)).succeeded == 2
    for report_id in reports.values():  # all are delivered again
        assert task.start_processing(transaction(report_id, 1)).result.applied is False
    assert report(sessions, reports["unknown"]).status == "MATCHED"
    assert counts(sessions) == {"attempts": 7, "trust_ledger": 5, "alerts": 2, "scheduled_attempts": 0}
    with sessions() as session:
        assert trust_scores(session) == {
            "matched": 0.51, "invented": 0.4, "partly": 0.51, "lower": 0.45, "unknown": 0.51,
        }  # fmt: skip


def transaction(report_id: int, attempt: int) -> Any:
    (made,) = IterableConnector(
        [ReconciliationJob(report_id, attempt=attempt).to_payload()]
    ).fetch_transactions(1)
    return made


def test_a_platform_that_stumbles_is_asked_again_within_the_attempt(sessions: Sessions) -> None:
    clock = ManualClock()
    fetcher, adapter = platform({"p1": Metrics(1000, 30, 2)}, clock, failure_rate=0.5)
    task = ReconciliationTask(fetcher, sessions, clock=clock)
    reports = [store(sessions, clock) for _ in range(10)]
    jobs = [ReconciliationJob(report_id) for report_id in reports]
    ended = task.consume_transactions(IterableConnector(jobs), patient(4))
    assert ended.succeeded + ended.failed == 10
    assert ended.succeeded >= 5
    assert adapter.calls > 10
    assert counts(sessions)["attempts"] == 10  # the engine's retries are not attempts of the report


def test_when_the_retries_are_used_up_the_attempt_is_missing_data(sessions: Sessions, source: Source) -> None:
    queue, connector = source
    clock = ManualClock()
    fetcher, adapter = platform({}, clock, failure_rate=1.0)
    task = ReconciliationTask(fetcher, sessions, clock=clock)
    report_id = store(sessions, clock)
    queue.enqueue(ReconciliationJob(report_id))
    task.consume_transactions(connector(), patient(3))
    assert adapter.calls == 3
    (attempt,) = rows(sessions, ReportAttempt)
    assert (attempt.status, attempt.error_code) == ("MISSING_PLATFORM_DATA", "fetch_error")
    again = task.consume_transactions(connector(), patient(3))  # delivered again, it succeeds
    assert again.failed == 0
    assert adapter.calls == 3
    assert counts(sessions) == {"attempts": 1, "trust_ledger": 0, "alerts": 0, "scheduled_attempts": 1}


@pytest.mark.parametrize("rate", ["auth_error_rate", "failure_rate"])
def test_what_does_not_help_is_not_asked_again(sessions: Sessions, rate: str) -> None:
    """Refused credentials fail immediately; other failures are retried only until the breaker opens."""
    clock = ManualClock()
    fetcher, adapter = platform({}, clock, **{rate: 1.0})
    task = ReconciliationTask(fetcher, sessions, clock=clock)
    outcome = task.start_processing(
        transaction(store(sessions, clock), 1), patient(1 if rate == "auth_error_rate" else 9)
    )
    expected = (1, "auth_error") if rate == "auth_error_rate" else (5, "circuit_open")
    assert (adapter.calls, rows(sessions, ReportAttempt)[0].error_code) == expected
    assert outcome.result.applied


@pytest.mark.parametrize(
    "payload", [{}, {"affiliate_report_id": 404}, {"affiliate_report_id": "1"}, "text", None]
)
def test_what_can_never_succeed_is_refused_for_good(sessions: Sessions, payload: Any) -> None:
    clock = ManualClock()
    fetcher, _ = platform({}, clock)
    task = ReconciliationTask(fetcher, sessions, clock=clock)
    ended = task.consume_transactions(IterableConnector([payload]), patient(5))
    assert ended.by_category == {"BUSINESS": 1}
    assert ended.outcomes[0].attempts == 1
    assert ended.outcomes[0].handled


def test_a_job_store_has_an_attempt_once(sessions: Sessions, tmp_path: Path) -> None:
    clock = ManualClock()
    with open_store(f"sqlite:///{tmp_path}/jobs.db", clock=clock) as jobs:
        queue = JobStoreQueue(jobs)
        report_id = store(sessions, clock, priority="high", correlation_id="request-7")
        queue.enqueue(
            ReconciliationJob(report_id, "high", None, "request-7"), priority="high", delay_seconds=60.0
        )
        assert resume(sessions, moment(clock)) == 1
        assert RetryScheduler(sessions, queue, clock=clock).run_once() == 1  # the job is already there
        (job,) = jobs.list()
        assert (job.id, job.priority, job.state) == (f"report-{report_id}-attempt-1", 0, JobState.READY)
        assert (job.correlation_id, job.retry_at) == ("request-7", moment(clock, 60))
        with pytest.raises(
            ReconcileConfigError, match="there is no priority 'urgent': use one of high, normal, low"
        ):
            queue.enqueue(ReconciliationJob(report_id, attempt=2), priority="urgent")


def test_a_stream_cannot_delay() -> None:
    with pytest.raises(ReconcileConfigError, match="delay_seconds must be a number of seconds, not None"):
        StreamQueue(None).enqueue(ReconciliationJob(1), delay_seconds=None)
    with pytest.raises(ReconcileConfigError, match="look_ahead_seconds=0"):
        StreamQueue(None).enqueue(ReconciliationJob(1), delay_seconds=1.0)


def test_a_report_that_is_deleted_meanwhile_is_no_retry(sessions: Sessions) -> None:
    clock = ManualClock()
    fetcher, _ = platform({}, clock)
    report_id = store(sessions, clock)
    with sessions() as session:
        session.delete(session.get_one(AffiliateReport, report_id))
        session.commit()
    task = ReconciliationTask(fetcher, sessions, clock=clock)
    assert task.start_processing(transaction(report_id, 1)).category == "BUSINESS"
