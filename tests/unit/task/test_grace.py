"""The half second after a cut-off: what ends successfully in it is settled, on both variants."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from conquiet.flow import THREADS
from conquiet.task import AsyncConsumerTask, ConsumerTask, Outcome, StopReason, Transaction
from conquiet.testing import AutojumpClock, LoopClock, VirtualLoop
from tests.unit.task.both import policy

pytestmark = pytest.mark.clause("E-17", "E-29")


class Source:
    """One transaction. Records what is settled and released."""

    def __init__(self) -> None:
        self.left = [Transaction("a")]
        self.settled: list[Outcome] = []
        self.released: list[Outcome] = []

    def fetch_transactions(self, batch_size: int, **extra: Any) -> Sequence[Transaction]:
        found, self.left = self.left, []
        return found

    def settle(self, outcomes: Sequence[Outcome]) -> None:
        self.settled += outcomes

    def release(self, outcomes: Sequence[Outcome]) -> None:
        self.released += outcomes

    async def fetch_transactions_async(self, batch_size: int, **extra: Any) -> Sequence[Transaction]:
        return self.fetch_transactions(batch_size)

    async def settle_async(self, outcomes: Sequence[Outcome]) -> None:
        self.settle(outcomes)

    async def release_async(self, outcomes: Sequence[Outcome]) -> None:
        self.release(outcomes)

    @property
    def ended(self) -> list[tuple[str, Any]]:
        return [(str(outcome.status), outcome.result) for outcome in (*self.settled, *self.released)]


def on_threads(
    seconds: float, source: Source, seen: list[str], interrupt_at: float | None, **loop: Any
) -> Any:
    """Process for so many seconds, then a success handler that takes 0.1 s."""
    with AutojumpClock() as clock:

        class Task(ConsumerTask):
            def process_transaction(self, transaction: Transaction) -> str:
                clock.sleep(seconds)
                return "done"

            def handle_transaction_success(self, transaction: Transaction, result: Any) -> None:
                clock.sleep(0.1)
                seen.append(f"success({result})")

        told = threading.Event()

        def interrupt() -> None:
            clock.sleep(interrupt_at or 0)
            os.kill(os.getpid(), signal.SIGINT)
            told.wait(30)

        def tell(*_: object) -> None:
            told.set()
            raise KeyboardInterrupt

        before = signal.signal(signal.SIGINT, tell)
        try:
            if interrupt_at is not None:
                THREADS.start(interrupt, "interrupting")
            return Task().consume_transactions(source, policy(**loop), clock=clock)
        except KeyboardInterrupt:
            return None
        finally:
            signal.signal(signal.SIGINT, before)


def on_asyncio(
    seconds: float, source: Source, seen: list[str], interrupt_at: float | None, **loop: Any
) -> Any:
    """The same, by a coroutine that finishes its work although it is cancelled."""

    class Task(AsyncConsumerTask):
        async def process_transaction(self, transaction: Transaction) -> str:
            work = asyncio.ensure_future(asyncio.sleep(seconds, "done"))
            try:
                return await asyncio.shield(work)
            except asyncio.CancelledError:
                return await work

        async def handle_transaction_success(self, transaction: Transaction, result: Any) -> None:
            await asyncio.sleep(0.1)
            seen.append(f"success({result})")

    async def main() -> Any:
        consuming = asyncio.ensure_future(
            Task().consume_transactions(source, policy(**loop), clock=LoopClock())
        )
        if interrupt_at is not None:
            asyncio.get_running_loop().call_later(interrupt_at, consuming.cancel)
        try:
            return await consuming
        except asyncio.CancelledError:
            return None

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main())


@pytest.fixture(params=[on_threads, on_asyncio], ids=["threads", "asyncio"])
def consume(request: pytest.FixtureRequest) -> Callable[..., Any]:
    variant: Callable[..., Any] = request.param
    return variant


def test_what_succeeds_in_it_after_an_interrupt_is_settled(consume: Callable[..., Any]) -> None:
    source, seen = Source(), list[str]()
    consume(10.2, source, seen, 10)
    assert (source.ended, seen) == ([("succeeded", "done")], ["success(done)"])
    assert source.released == []


def test_what_succeeds_in_it_after_the_loops_time_is_settled(consume: Callable[..., Any]) -> None:
    source, seen = Source(), list[str]()
    report = consume(10.2, source, seen, None, timeout=10)
    assert (report.stop_reason, report.succeeded, report.unsettled) == (StopReason.LOOP_TIMEOUT, 1, 0)
    assert (source.ended, seen) == ([("succeeded", "done")], ["success(done)"])


def test_what_ends_after_it_is_not(consume: Callable[..., Any]) -> None:
    source, seen = Source(), list[str]()
    report = consume(10.6, source, seen, None, timeout=10)
    assert (report.stop_reason, report.succeeded, report.unsettled) == (StopReason.LOOP_TIMEOUT, 0, 1)
    assert (source.ended, seen) == ([("unsettled", None)], [])


def test_a_success_handler_that_outlasts_it_is_left_behind(consume: Callable[..., Any]) -> None:
    source, seen = Source(), list[str]()
    report = consume(10.45, source, seen, None, timeout=10)
    assert (report.succeeded, report.unsettled) == (0, 1)
    assert source.ended == [("unsettled", None)]
