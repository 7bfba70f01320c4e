"""Reports of affiliates with little trust wait before their first attempt, if the rules say so."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.orm import Session, sessionmaker

from conquiet.embedded import RedisServer
from conquiet.errors import ReconcileConfigError
from conquiet.jobs import open_store
from conquiet.local import PriorityDelayQueue
from conquiet.queue import QueueConfig, RedisStreamsQueue, connect
from conquiet.reconcile import (
    DEFAULT_RULES,
    IntakeRules,
    JobStoreQueue,
    RetryScheduler,
    StreamQueue,
    TrustEvent,
    resume,
)
from conquiet.reconcile.intake.desk import IntakeDesk
from conquiet.reconcile.models import AffiliateReport, ScheduledAttempt
from conquiet.reconcile.trust import record_trust
from conquiet.testing import ManualClock
from tests.integration.reconcile.reports import moment, rows, store

Sessions = sessionmaker[Session]
REPORT = {"platform": "instagram", "post_id": "p1"} | {
    f"claimed_{name}": 1 for name in ("views", "clicks", "conversions")
}
SLOW = replace(DEFAULT_RULES, intake=IntakeRules(low_trust_delay_seconds=600.0))


def distrusted(sessions: Sessions, clock: ManualClock, times: int) -> None:
    """Ann has claimed too much so many times: 0.5 - 0.1 each."""
    for _ in range(times):
        report_id = store(sessions, clock)
        with sessions() as session:
            record_trust(
                session.connection(),
                report_id=report_id,
                attempt=1,
                affiliate_id="ann",
                event=TrustEvent.OVERCLAIM,
                now=moment(clock),
                rules=DEFAULT_RULES,
            )
            session.get_one(AffiliateReport, report_id).finished_at = moment(clock)
            session.commit()


@pytest.fixture(scope="module")
def one_redis() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture(params=["local", "jobs", "streams"])
def queue(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Any, Any]]:
    """A queue, and how many jobs are in it."""
    if request.param == "local":
        local = PriorityDelayQueue()
        yield local, lambda: local.snapshot()["depth"]
    elif request.param == "jobs":
        with open_store(f"sqlite:///{tmp_path}/jobs.db") as jobs:
            yield JobStoreQueue(jobs), lambda: len(jobs.list(queue="reconciliation"))
    else:
        config = QueueConfig(f"reconciliation {tmp_path.name}", "workers", "one")
        with connect(request.getfixturevalue("one_redis").url) as redis:
            stream = RedisStreamsQueue(redis, config)
            yield StreamQueue(stream), lambda: stream.backlog_stats().length


@pytest.mark.clause("W-33")
def test_they_wait_in_the_database_and_others_do_not(
    sessions: Sessions, queue: tuple[Any, Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "conquiet.reconcile")
    into, depth = queue
    clock = ManualClock()
    distrusted(sessions, clock, times=3)
    desk = IntakeDesk(sessions, into, rules=SLOW, clock=clock)
    waiting = desk.submit(REPORT | {"affiliate_id": "ann"})
    assert waiting.delay_seconds == 600.0
    assert depth() == 0
    assert "for an affiliate with little trust: begins in 600 s" in caplog.text
    assert desk.submit(REPORT | {"affiliate_id": "bob"}).delay_seconds == 0.0
    assert depth() == 1
    [scheduled] = rows(sessions, ScheduledAttempt)
    assert (scheduled.report_id, scheduled.attempt) == (waiting.report_id, 1)
    assert scheduled.due_at == moment(clock, 600)

    scheduler = RetryScheduler(sessions, into, clock=clock, look_ahead_seconds=0)
    resume(
        sessions, moment(clock)
    )  # a start of the process in between takes bob's report again, and hurries nothing
    assert scheduler.run_once() == 1
    clock.advance(599)
    assert scheduler.run_once() == 0
    clock.advance(1)
    assert scheduler.run_once() == 1


@pytest.mark.clause("W-33")
def test_it_is_off_by_default_and_has_a_threshold(sessions: Sessions) -> None:
    clock, queue = ManualClock(), PriorityDelayQueue()
    distrusted(sessions, clock, times=2)  # 0.30, which is not below it
    report = REPORT | {"affiliate_id": "ann"}
    assert IntakeDesk(sessions, queue, rules=SLOW, clock=clock).submit(report).delay_seconds == 0.0
    distrusted(sessions, clock, times=1)
    assert IntakeDesk(sessions, queue, clock=clock).submit(report).delay_seconds == 0.0
    assert queue.snapshot()["ready"] == 2
    assert IntakeDesk(sessions, queue, rules=SLOW, clock=clock).submit(report).delay_seconds == 600.0
    assert queue.snapshot()["depth"] == 2


@pytest.mark.clause("W-33")
def test_a_report_received_before_is_not_scheduled_again(sessions: Sessions) -> None:
    clock, queue = ManualClock(), PriorityDelayQueue()
    distrusted(sessions, clock, times=3)
    desk = IntakeDesk(sessions, queue, rules=SLOW, clock=clock)
    first, again = (desk.submit(REPORT | {"affiliate_id": "ann"}, key="k") for _ in range(2))
    assert (first.report_id, again.is_new) == (again.report_id, False)
    assert len(rows(sessions, ScheduledAttempt)) == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"low_trust_below": -0.1},
        {"low_trust_delay_seconds": -1},
        {"low_trust_delay_seconds": "x"},
        {"low_trust_delay_seconds": 1e12},
    ],
)
def test_wrong_rules_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ReconcileConfigError, match=next(iter(wrong))):
        IntakeRules(**wrong)
