"""The intake refuses reports when a queue outside the process is full, too."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.orm import Session, sessionmaker

from conquiet.embedded import RedisServer
from conquiet.errors import QueueFullError, ReconcileConfigError, UnavailableError
from conquiet.jobs import open_store
from conquiet.queue import QueueConfig, RedisStreamsQueue, connect
from conquiet.reconcile import JobStoreQueue, ReconciliationJob, RetryScheduler, StreamQueue, create_app
from conquiet.reconcile.intake.backlog import Backlog
from conquiet.reconcile.models import AffiliateReport, ScheduledAttempt
from conquiet.reconcile.scheduler import schedule_attempt
from conquiet.testing import ManualClock
from tests.integration.reconcile.reports import moment, rows, store
from tests.integration.reconcile.test_intake import Client

Sessions = sessionmaker[Session]


class Bounded:
    """A queue of at most three, and how to take one out of it."""

    def __init__(self, queue: Any, clock: ManualClock, take: Any) -> None:
        self.queue, self.clock, self.take = queue, clock, take


@pytest.fixture(scope="module")
def one_redis() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql", "streams"])
def bounded(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bounded]:
    clock = ManualClock()
    if request.param == "streams":
        config = QueueConfig(f"reconciliation {tmp_path.name}", "workers", "one", block_ms=1)
        with connect(request.getfixturevalue("one_redis").url) as redis:
            stream = RedisStreamsQueue(redis, config)

            def acknowledge() -> None:
                [message] = stream.read(1)
                stream.ack(message)

            yield Bounded(StreamQueue(stream, max_depth=3, clock=clock), clock, acknowledge)
        return
    dsn = (
        f"sqlite:///{tmp_path}/jobs.db"
        if request.param == "sqlite"
        else request.getfixturevalue("postgres_dsn")
    )
    with open_store(dsn) as jobs:

        def finish() -> None:
            [job] = jobs.claim("reconciliation", limit=1, worker="one", lease_ttl=60)
            jobs.ack(job)

        yield Bounded(JobStoreQueue(jobs, max_depth=3, clock=clock), clock, finish)


@pytest.fixture
def reports(tmp_path: Path) -> Iterator[Sessions]:
    from conquiet.reconcile import open_database

    opened = open_database(f"sqlite:///{tmp_path}/reports.db")
    yield opened
    opened.kw["bind"].dispose()


@pytest.mark.clause("W-35")
def test_a_full_queue_is_told_with_429_and_stores_nothing(reports: Sessions, bounded: Bounded) -> None:
    client = Client(create_app(reports, bounded.queue, clock=bounded.clock))
    assert [client.post().status_code for _ in range(3)] == [202] * 3
    refused = client.post()
    assert refused.status_code == 429
    assert int(refused.headers["Retry-After"]) >= 1
    assert refused.json()["error"] == {"code": "queue_full", "message": "3 reports are waiting already"}
    assert client.get("/health").json()["queue"] == {"depth": 3}
    assert len(rows(reports, AffiliateReport)) == 3
    bounded.take()
    assert client.post().status_code == 429  # counted at most once a second
    bounded.clock.advance(1.0)
    assert client.post().status_code == 202
    assert client.post().status_code == 429


@pytest.mark.clause("W-35")
def test_attempts_wait_in_the_database_while_it_is_full(
    reports: Sessions, bounded: Bounded, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(3):
        bounded.queue.enqueue(ReconciliationJob(1_000 + number))
    with pytest.raises(QueueFullError, match="3 items wait in .*, and at most 3 may") as full:
        bounded.queue.enqueue(ReconciliationJob(2_000))
    assert full.value.depth == 3
    report_id = store(reports, bounded.clock)
    with reports() as session:
        schedule_attempt(session, report_id, 1, moment(bounded.clock))
        session.commit()
    scheduler = RetryScheduler(reports, bounded.queue, clock=bounded.clock, look_ahead_seconds=0)
    assert scheduler.run_once() == 0
    assert [row.enqueued_at for row in rows(reports, ScheduledAttempt)] == [None]
    bounded.take()
    bounded.clock.advance(1.0)
    assert scheduler.run_once() == 1


@pytest.mark.clause("W-35")
def test_jobs_with_a_delay_do_not_close_the_intake(reports: Sessions, tmp_path: Path) -> None:
    """A platform's retries wait in the store, and the reports of others are accepted."""
    clock = ManualClock()
    with open_store(f"sqlite:///{tmp_path}/jobs.db") as jobs:
        queue = JobStoreQueue(jobs, max_depth=3, clock=clock)
        for number in range(50):
            queue.enqueue(ReconciliationJob(1_000 + number, attempt=2), delay_seconds=1_800.0)
        client = Client(create_app(reports, queue, clock=clock))
        assert [client.post().status_code for _ in range(4)] == [202, 202, 202, 429]


@pytest.mark.clause("W-35")
def test_it_is_counted_no_further_than_to_the_limit(tmp_path: Path) -> None:
    """What is beyond it may be millions, enqueued by others."""
    with open_store(f"sqlite:///{tmp_path}/many.db") as jobs:
        jobs.enqueue_many("reconciliation", [{}] * 50)
        queue = JobStoreQueue(jobs, max_depth=3)
        assert queue.backlog.depth() == 3
        with pytest.raises(QueueFullError, match="3 items wait"):
            queue.enqueue(ReconciliationJob(1))
        jobs.ack_many(jobs.claim("reconciliation", 48))
        assert JobStoreQueue(jobs, max_depth=3).backlog.depth() == 2
        assert JobStoreQueue(jobs, max_depth=None).backlog.depth() == 2


@pytest.mark.clause("W-35")
def test_without_a_limit_nothing_is_counted(reports: Sessions, tmp_path: Path) -> None:
    with open_store(f"sqlite:///{tmp_path}/jobs.db") as jobs:
        queue = JobStoreQueue(jobs, max_depth=None)
        client = Client(create_app(reports, queue))
        assert [client.post().status_code for _ in range(10)] == [202] * 10
        for wrong in (0, -1, 2.5, "many"):
            with pytest.raises(ReconcileConfigError, match="max_depth must be an int of at least 1"):
                JobStoreQueue(jobs, max_depth=wrong)  # type: ignore[arg-type]


@pytest.mark.clause("W-35")
def test_a_queue_that_is_away_closes_nothing(reports: Sessions, caplog: pytest.LogCaptureFixture) -> None:
    """The reports are stored, and the scheduler enqueues them when it is back."""
    clock = ManualClock()
    with RedisServer() as server, connect(server.url) as redis:
        stream = RedisStreamsQueue(redis, QueueConfig("reports", "workers", "one", block_ms=1))
        queue = StreamQueue(stream, max_depth=3, clock=clock)
        client = Client(create_app(reports, queue, clock=clock))
        assert client.post().status_code == 202
        server.stop()
        clock.advance(1.0)
        assert [client.post().status_code for _ in range(3)] == [202] * 3
        told = [record for record in caplog.records if record.levelno == logging.WARNING]
        assert len(told) == 1
        assert told[0].getMessage().startswith("what waits in the stream cannot be counted (")
        assert client.get("/health").json()["queue"] == {"depth": None}
        server.start()
        clock.advance(1.0)
        scheduler = RetryScheduler(reports, queue, clock=clock, look_ahead_seconds=0)
        with suppress(UnavailableError):  # the connections from before
            scheduler.run_once()
        while any(row.enqueued_at is None for row in rows(reports, ScheduledAttempt)):
            clock.advance(1.0)
            for _ in range(stream.backlog_stats().lag or 0):
                [message] = stream.read(1)
                stream.ack(message)
            scheduler.run_once()


def test_an_unknown_length_is_no_limit(caplog: pytest.LogCaptureFixture) -> None:
    lengths: list[int | None] = [None, None, 5, None]
    clock = ManualClock()
    backlog = Backlog("the stream", lambda: lengths.pop(0), 3, clock)
    full = []
    for _ in range(4):
        full.append(backlog.is_full())
        clock.advance(1.0)
    assert full == [False, False, True, False]
    assert caplog.text.count("cannot be counted (its length is not known)") == 2  # each time it begins


def test_counting_takes_at_most_a_twentieth_of_the_time() -> None:
    clock, counted = ManualClock(), []

    def slowly() -> int:
        clock.advance(2.0)
        counted.append(clock.monotonic())
        return 0

    backlog = Backlog("the queue", slowly, 3, clock)
    for _ in range(100):
        assert not backlog.is_full()
        clock.advance(1.0)
    assert counted == [2.0, 44.0, 86.0]
