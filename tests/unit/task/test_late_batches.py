"""A fetch that is given up at its limit and returns a batch after all: the batch goes back to the connector, always."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from conquiet.connectors import IterableConnector, JobConnector, LocalQueueConnector
from conquiet.jobs import JobState, open_store
from conquiet.local import PriorityDelayQueue
from conquiet.task import (
    AsyncConsumerTask,
    ConsumerTask,
    FetchTimeoutException,
    Outcome,
    SettleException,
    StopReason,
    Transaction,
)
from conquiet.task.mixins.policies import ConsumerPolicy, RetryPolicy
from conquiet.testing import LoopClock
from tests.unit.task.both import policy
from tests.unit.task.busy_loop import BusyLoop, spend

pytestmark = pytest.mark.clause("E-10", "E-29")

SOON = RetryPolicy(2, timeout=0.05)


class Nothing(ConsumerTask):
    def process_transaction(self, transaction: Transaction) -> str:
        return transaction.id


class Slow:
    """The first fetch returns its batch when the second one has begun, or when `go` is set."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.released = list[tuple[str, int]]()
        self.gave_back = threading.Event()
        self.settled = list[str]()
        self.fetches = 0

    def fetch_transactions(self, batch_size: int, **extra: Any) -> list[Transaction]:
        self.fetches += 1
        if self.fetches == 1:
            assert self.go.wait(30)
            return [Transaction("a"), Transaction("b")]
        self.go.set()
        return []

    def settle(self, outcomes: Sequence[Outcome]) -> None:
        self.settled += [outcome.transaction_id for outcome in outcomes]

    def release(self, outcomes: Sequence[Outcome]) -> None:
        self.released += [(outcome.transaction_id, outcome.attempts) for outcome in outcomes]
        self.gave_back.set()


def fetching(retry: RetryPolicy, **loop: Any) -> ConsumerPolicy:
    return policy(fetch=retry, batch=2, **loop)


def test_it_is_released_whether_the_loop_still_runs_or_not(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    source = Slow()
    report = Nothing().consume_transactions(source, fetching(SOON))
    assert report.stop_reason is StopReason.DRAINED
    assert source.gave_back.wait(30)
    assert source.released == [("a", 0), ("b", 0)]
    assert source.settled == []
    assert "returned 2 transactions (a, b) after its time limit" in caplog.text


def test_it_is_released_after_the_loop_has_ended() -> None:
    source = Slow()
    with pytest.raises(FetchTimeoutException):
        Nothing().consume_transactions(source, fetching(RetryPolicy(1, timeout=0.05)))
    assert source.released == []
    source.go.set()
    assert source.gave_back.wait(30)
    assert source.released == [("a", 0), ("b", 0)]


def test_a_running_loop_releases_it_without_waiting_for_its_end() -> None:
    class Streaming(Slow):
        """Goes on until the batch was given back."""

        def fetch_transactions(self, batch_size: int, **extra: Any) -> list[Transaction]:
            if self.fetches and self.gave_back.is_set():
                task.stop()
            return super().fetch_transactions(batch_size)

    source, task = Streaming(), Nothing()
    report = task.consume_transactions(source, fetching(SOON, streaming=True))
    assert report.stop_reason is StopReason.STOPPED
    assert source.released == [("a", 0), ("b", 0)]
    assert report.fetched == 0


def test_a_release_that_fails_ends_the_loop() -> None:
    class Broken(Slow):
        def release(self, outcomes: Sequence[Outcome]) -> None:
            raise OSError("the source is away")

    with pytest.raises(SettleException, match=r"could not release 2 transactions \(a, b\)"):
        Nothing().consume_transactions(Broken(), fetching(SOON, streaming=True))


def test_a_release_that_fails_after_the_end_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    logged = threading.Event()

    class Broken(Slow):
        def release(self, outcomes: Sequence[Outcome]) -> None:
            raise OSError("the source is away")

    class Watching(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "could not release" in record.getMessage():
                logged.set()

    watching = Watching()
    logging.getLogger("conquiet.engine").addHandler(watching)
    try:
        source = Broken()
        with pytest.raises(FetchTimeoutException):
            Nothing().consume_transactions(source, fetching(RetryPolicy(1, timeout=0.05)))
        source.go.set()
        assert logged.wait(30)
    finally:
        logging.getLogger("conquiet.engine").removeHandler(watching)


@pytest.mark.clause("E-34")
def test_jobs_go_back_to_their_store_and_are_heartbeated_no_longer() -> None:
    with open_store("memory://") as store:
        ids = store.enqueue_many("q", [{}, {}])
        go, back = threading.Event(), threading.Event()

        class Slowly(JobConnector):
            def fetch_transactions(self, batch_size: int, **extra: Any) -> list[Transaction]:
                batch = super().fetch_transactions(batch_size)
                assert go.wait(30)
                return batch

            def release(self, outcomes: Sequence[Outcome]) -> None:
                super().release(outcomes)
                back.set()

        connector = Slowly(store, "q", lease_ttl=60.0)
        with pytest.raises(FetchTimeoutException):
            Nothing().consume_transactions(connector, fetching(RetryPolicy(1, timeout=0.2)))
        assert [job.state for job in map(store.get, ids) if job] == [JobState.IN_FLIGHT] * 2
        go.set()
        assert back.wait(30)
        assert [job.state for job in map(store.get, ids) if job] == [JobState.READY] * 2
        assert connector._leased() is None


@pytest.mark.clause("E-34")
@pytest.mark.parametrize("kind", ["local", "items"])
def test_items_go_back_to_their_place(kind: str) -> None:
    go, back = threading.Event(), threading.Event()
    queue = PriorityDelayQueue()
    for number in range(3):
        queue.enqueue(number)
    base: Any = LocalQueueConnector if kind == "local" else IterableConnector

    class Slowly(base):  # type: ignore[misc]
        def fetch_transactions(self, batch_size: int, **extra: Any) -> Any:
            batch = super().fetch_transactions(batch_size)
            assert go.wait(30)
            return batch

        def release(self, outcomes: Sequence[Outcome]) -> None:
            super().release(outcomes)
            back.set()

    connector = Slowly(queue, poll_timeout=0.0) if kind == "local" else Slowly(range(3))
    with pytest.raises(FetchTimeoutException):
        Nothing().consume_transactions(connector, fetching(RetryPolicy(1, timeout=0.2)))
    go.set()
    assert back.wait(30)
    seen: list[int] = []

    class Seeing(ConsumerTask):
        def process_transaction(self, transaction: Transaction) -> None:
            seen.append(transaction.payload)

    Seeing().consume_transactions(connector, policy(batch=3))
    assert sorted(seen) == [0, 1, 2]


def test_on_asyncio_too() -> None:
    """A coroutine is cancelled at its limit; but one that blocks the loop past it, or goes on, has a batch to return."""
    released: list[str] = []

    class Blocking:
        fetches = 0

        async def fetch_transactions_async(self, batch_size: int, **extra: Any) -> list[Transaction]:
            self.fetches += 1
            if self.fetches == 1:
                spend(0.5)
                return [Transaction("a")]
            if self.fetches == 2:
                try:
                    await asyncio.sleep(10)
                except asyncio.CancelledError:
                    return [Transaction("b")]
            return []

        async def release_async(self, outcomes: Sequence[Outcome]) -> None:
            released.extend(outcome.transaction_id for outcome in outcomes)

    class Task(AsyncConsumerTask):
        async def process_transaction(self, transaction: Transaction) -> None:
            raise AssertionError("it was given up")

    async def main() -> Any:
        limits = fetching(RetryPolicy(3, timeout=0.2))
        return await Task().consume_transactions(Blocking(), limits, clock=LoopClock())

    with asyncio.Runner(loop_factory=BusyLoop) as runner:
        report = runner.run(main())
    assert (report.fetched, report.stop_reason) == (0, StopReason.DRAINED)
    assert released == ["a", "b"]
