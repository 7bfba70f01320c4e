"""Outages of what handlers need: the worker pauses, no job is lost, and it goes on by itself."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from conquiet.errors import DamagedRowError, StoreOutcomeUnknownError, StoreUnavailableError
from conquiet.local import LAST_EXCEPTIONS, LocalConfigError, PriorityDelayQueue, Worker, WorkerPool
from tests.unit.local.taking import NotedClock, wait_for


@pytest.fixture(autouse=True)
def _forget_exceptions() -> Iterator[None]:
    LAST_EXCEPTIONS.clear()
    yield
    LAST_EXCEPTIONS.clear()


class Database:
    def __init__(self) -> None:
        self.away = threading.Event()
        self.tried: list[Any] = []
        self.done: list[Any] = []

    def handle(self, job: Any) -> None:
        self.tried.append(job)
        if self.away.is_set():
            raise StoreUnavailableError(
                "postgresql://app:hunter2@db/x: connection refused. Nothing was committed"
            )
        self.done.append(job)


@pytest.fixture
def clock() -> NotedClock:
    return NotedClock()


@pytest.fixture
def queue(clock: NotedClock) -> PriorityDelayQueue:
    return PriorityDelayQueue(clock=clock)


def while_time_passes(clock: NotedClock, condition: Callable[[], bool]) -> None:
    """Wait for the condition. Pauses end because time passes, not because the machine is fast."""

    def is_true() -> bool:
        clock.advance(6)
        return condition()

    wait_for(is_true)


@pytest.mark.clause("W-14")
def test_no_job_is_burnt_while_the_database_is_away(
    queue: PriorityDelayQueue, clock: NotedClock, caplog: pytest.LogCaptureFixture
) -> None:
    database = Database()
    database.away.set()
    for job in range(200):
        queue.enqueue(job)
    with Worker(queue, database.handle, poll_timeout=1_000):
        while_time_passes(clock, lambda: len(database.tried) > 10)
        assert database.done == []
        assert queue.depth in (198, 199)  # it has one, or tries another
        database.away.clear()
        while_time_passes(clock, lambda: len(database.done) == 200)
    assert sorted(database.done) == list(range(200))
    assert LAST_EXCEPTIONS == []
    paused, resumed = caplog.records
    longest = max(wait for wait in clock.waits if wait is not None and wait < 100)
    assert 0.5 < longest <= 5.05  # it waits longer each time
    assert (paused.event, resumed.event) == ("workers_paused", "workers_resumed")  # type: ignore[attr-defined]
    assert "StoreUnavailableError: postgresql://app:***@db/x: connection refused" in paused.getMessage()
    assert resumed.getMessage().startswith("the workers go on after a pause of ")


def test_a_pool_speaks_of_an_outage_once(
    queue: PriorityDelayQueue, clock: NotedClock, caplog: pytest.LogCaptureFixture
) -> None:
    database = Database()
    database.away.set()
    for job in range(50):
        queue.enqueue(job)
    with WorkerPool(queue, database.handle, 4, poll_timeout=1_000):
        while_time_passes(clock, lambda: len(database.tried) > 20)
        database.away.clear()
        while_time_passes(clock, lambda: len(database.done) == 50)
    assert [record.event for record in caplog.records] == ["workers_paused", "workers_resumed"]  # type: ignore[attr-defined]


def test_a_job_that_alone_meets_its_outage_does_not_hold_up_the_others(
    queue: PriorityDelayQueue, clock: NotedClock
) -> None:
    """For example a statement that the server cancels for this job every time."""
    done: list[Any] = []

    def handle(job: str) -> None:
        if job == "bad":
            raise StoreUnavailableError("canceling statement due to statement timeout")
        done.append(job)

    queue.enqueue("bad", "high")
    queue.enqueue("a")
    queue.enqueue("b")
    with Worker(queue, handle, poll_timeout=1_000):
        while_time_passes(clock, lambda: done == ["a", "b"])
    assert [entry["error"] for entry in LAST_EXCEPTIONS] == ["canceling statement due to statement timeout"]


def test_an_outage_seen_by_one_that_fails_anyway_proves_nothing(
    queue: PriorityDelayQueue, clock: NotedClock
) -> None:
    database = Database()

    def handle(job: Any) -> None:
        if job == "broken":
            raise ValueError("before it asks the database")
        database.handle(job)

    database.away.set()
    queue.enqueue("good", "high")
    queue.enqueue("broken")
    with Worker(queue, handle, poll_timeout=1_000):
        while_time_passes(clock, lambda: len(LAST_EXCEPTIONS) == 1 and len(database.tried) > 3)
        assert database.done == []
        database.away.clear()
        while_time_passes(clock, lambda: database.done == ["good"])
    assert [entry["type"] for entry in LAST_EXCEPTIONS] == ["ValueError"]


@pytest.mark.clause("W-13")
def test_stopped_during_an_outage_it_ends_and_says_what_stays(
    queue: PriorityDelayQueue, clock: NotedClock, caplog: pytest.LogCaptureFixture
) -> None:
    database = Database()
    database.away.set()
    for job in range(3):
        queue.enqueue(job)
    worker = Worker(queue, database.handle)
    worker.start()
    clock.wait_for_sleepers()
    assert worker.stop(10)
    assert queue.snapshot()["ready"] == 3
    assert "stopped during an outage; 3 ready jobs stay in the queue" in caplog.text
    database.away.clear()
    with Worker(queue, database.handle):
        wait_for(lambda: len(database.done) == 3)
    assert database.done == [0, 1, 2]


@pytest.mark.parametrize(
    "error", [StoreOutcomeUnknownError("may have been committed"), DamagedRowError("column x"), OSError("?")]
)
def test_what_may_have_happened_or_stays_is_no_outage(queue: PriorityDelayQueue, error: Exception) -> None:
    def handle(job: object) -> None:
        raise error

    queue.enqueue(1)
    with Worker(queue, handle):
        wait_for(lambda: len(LAST_EXCEPTIONS) == 1)


def test_other_outages_and_none(queue: PriorityDelayQueue, clock: NotedClock) -> None:
    calls: list[int] = []

    def handle(job: object) -> None:
        calls.append(1)
        if len(calls) == 1:
            raise ConnectionError("another driver's error")

    queue.enqueue(1)
    with Worker(queue, handle, outages=(ConnectionError,), poll_timeout=1_000):
        while_time_passes(clock, lambda: len(calls) == 2)
    assert LAST_EXCEPTIONS == []
    database = Database()
    database.away.set()
    queue.enqueue(2)
    with WorkerPool(queue, database.handle, 1, outages=()):
        wait_for(lambda: len(LAST_EXCEPTIONS) == 1)


@pytest.mark.parametrize("wrong", [ConnectionError, [ConnectionError], ("ConnectionError",), None])
def test_outages_are_classes(queue: PriorityDelayQueue, wrong: Any) -> None:
    make: Callable[..., Any] = Worker
    with pytest.raises(LocalConfigError, match="outages must be a tuple of exception classes"):
        make(queue, print, outages=wrong)
