"""Ends in the middle of work: what was cut off changes nothing afterwards, and every transaction is reported once."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from conquiet.clock import SYSTEM_CLOCK, Clock
from conquiet.task import (
    AsyncConsumerTask,
    ConsumerTask,
    Outcome,
    SettleException,
    StopReason,
    Transaction,
)
from conquiet.task.mixins.policies import BatchPolicy, ConcurrencyPolicy, ConsumerLoopPolicy, ConsumerPolicy
from conquiet.testing import AutojumpClock, LoopClock, VirtualLoop
from tests.campaign import campaign_size


class Source:
    """An endless source of numbered transactions. Records what is settled and released."""

    def __init__(self) -> None:
        self.fetched = 0
        self.settled: list[str] = []
        self.released: list[str] = []

    def fetch_transactions(self, batch_size: int, **extra: Any) -> Sequence[Transaction]:
        self.fetched += batch_size
        return [Transaction(f"t{number}") for number in range(self.fetched - batch_size, self.fetched)]

    def settle(self, outcomes: Sequence[Outcome]) -> None:
        self.settled += [outcome.transaction_id for outcome in outcomes]

    def release(self, outcomes: Sequence[Outcome]) -> None:
        self.released += [outcome.transaction_id for outcome in outcomes]


class AsyncSource(Source):
    async def fetch_transactions_async(self, batch_size: int, **extra: Any) -> Sequence[Transaction]:
        return self.fetch_transactions(batch_size)

    async def settle_async(self, outcomes: Sequence[Outcome]) -> None:
        self.settle(outcomes)

    async def release_async(self, outcomes: Sequence[Outcome]) -> None:
        self.release(outcomes)


def policy(size: int, concurrency: int, **loop: Any) -> ConsumerPolicy:
    return ConsumerPolicy(ConsumerLoopPolicy(BatchPolicy(size), ConcurrencyPolicy(concurrency), **loop))


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        yield runner


@pytest.mark.clause("E-17", "E-08")
def test_a_thread_that_was_cut_off_touches_nothing_when_it_comes_back() -> None:
    seen: list[str] = []
    source = Source()
    with AutojumpClock() as clock:

        class Slow(ConsumerTask):
            def process_transaction(self, transaction: Transaction) -> Any:
                clock.sleep(60)
                seen.append(f"{transaction.id} back at {clock.monotonic():g}")

            def handle_transaction_success(self, transaction: Transaction, result: Any) -> None:
                seen.append("success")

            def handle_transaction_exception(self, transaction: Transaction, exception: Any) -> None:
                seen.append("exception")

        report = Slow().consume_transactions(source, policy(2, 2, timeout=10.0), clock=clock)
        assert clock.monotonic() == pytest.approx(10.5)  # half a second to notice, and no longer
        assert (report.stop_reason, report.fetched, report.unsettled) == (StopReason.LOOP_TIMEOUT, 2, 2)
        assert (report.processed, report.abandoned_threads) == (0, 2)
        assert seen == []
    assert sorted(seen) == ["t0 back at 60", "t1 back at 60"]
    assert source.settled == []
    assert sorted(source.released) == ["t0", "t1"]
    assert (report.unsettled, report.succeeded, report.failed) == (2, 0, 0)


class Sleeping(AsyncConsumerTask):
    async def process_transaction(self, transaction: Transaction) -> Any:
        await asyncio.sleep(60)


@pytest.mark.clause("E-17")
def test_a_coroutine_is_cut_off_at_once(runner: asyncio.Runner) -> None:
    async def main() -> tuple[Any, float]:
        report = await Sleeping().consume_transactions(
            AsyncSource(), policy(2, 2, timeout=10.0), clock=LoopClock()
        )
        return report, asyncio.get_running_loop().time()

    report, ended = runner.run(main())
    assert ended == 10.0
    assert (report.stop_reason, report.unsettled, report.abandoned_threads) == (StopReason.LOOP_TIMEOUT, 2, 0)


@pytest.mark.clause("E-17")
def test_a_coroutine_that_will_not_be_cancelled_is_left_behind(runner: asyncio.Runner) -> None:
    source = AsyncSource()

    class Stubborn(AsyncConsumerTask):
        async def process_transaction(self, transaction: Transaction) -> Any:
            until = asyncio.get_running_loop().time() + 60
            while (left := until - asyncio.get_running_loop().time()) > 0:
                try:
                    await asyncio.sleep(left)
                except asyncio.CancelledError:
                    pass

    async def main() -> tuple[Any, float]:
        report = await Stubborn().consume_transactions(source, policy(1, 1, timeout=10.0), clock=LoopClock())
        ended = asyncio.get_running_loop().time()
        await asyncio.sleep(100)
        return report, ended

    report, ended = runner.run(main())
    assert ended == pytest.approx(10.5)
    assert (report.unsettled, report.succeeded) == (1, 0)
    assert (source.settled, source.released) == ([], ["t0"])


@pytest.mark.clause("E-17", "E-29")
def test_a_settle_that_answers_too_late_is_not_counted_any_more() -> None:
    shown: list[Outcome] = []
    with AutojumpClock() as clock:

        class Late(Source):
            def settle(self, outcomes: Sequence[Outcome]) -> None:
                clock.sleep(60)
                super().settle(outcomes)

        class Quick(ConsumerTask):
            def process_transaction(self, transaction: Transaction) -> Any:
                return None

        source = Late()
        report = Quick().consume_transactions(
            source, policy(2, 1, timeout=10.0, limit=2), on_outcome=shown.append, clock=clock
        )
        assert clock.monotonic() == pytest.approx(15)
    assert clock.monotonic() == pytest.approx(60, abs=1)
    assert sorted(source.settled) == sorted(source.released) == ["t0", "t1"]
    assert (report.fetched, report.processed, report.succeeded, report.unsettled) == (2, 2, 0, 2)
    assert [str(outcome.status) for outcome in shown] == ["unsettled"] * 2


def _unknown_settle(source: Source, limits: ConsumerPolicy, clock: Clock = SYSTEM_CLOCK) -> Any:
    class Quick(ConsumerTask):
        def process_transaction(self, transaction: Transaction) -> Any:
            return None

    return Quick().consume_transactions(source, limits, clock=clock)


def _unknown_settle_async(source: Source, limits: ConsumerPolicy) -> Any:
    class Quick(AsyncConsumerTask):
        async def process_transaction(self, transaction: Transaction) -> Any:
            return None

    async def main() -> Any:
        return await Quick().consume_transactions(source, limits, clock=LoopClock())  # type: ignore[arg-type]

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main())


@pytest.mark.clause("E-17", "E-29")
@pytest.mark.parametrize("variant", ["threads", "asyncio"])
def test_the_report_names_transactions_whose_settling_is_unknown(
    variant: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Those of a settle call that was given up; not those that waited behind it, which were certainly not settled."""
    asked: list[str] = []
    with AutojumpClock() as clock:

        class Late(AsyncSource):
            def settle(self, outcomes: Sequence[Outcome]) -> None:
                asked.extend(outcome.transaction_id for outcome in outcomes)
                clock.sleep(60)

            async def settle_async(self, outcomes: Sequence[Outcome]) -> None:
                asked.extend(outcome.transaction_id for outcome in outcomes)
                await asyncio.sleep(60)

        limits = policy(1, 1, timeout=10.0, limit=3)
        if variant == "threads":
            report = _unknown_settle(Late(), limits, clock)
        else:
            report = _unknown_settle_async(Late(), limits)
    assert (report.processed, report.unsettled) == (3, 3)
    assert report.settle_unknown == asked
    assert str(report).endswith(f"3 unsettled ({len(asked)} of them perhaps settled)")
    assert caplog.messages == [
        f"the connector did not answer to settle {len(asked)} transactions in time ({', '.join(asked)}): "
        "whether they are settled is unknown"
    ]


@pytest.mark.clause("E-29")
@pytest.mark.parametrize("variant", ["threads", "asyncio"])
def test_nor_is_it_known_after_a_settle_that_failed(variant: str) -> None:
    class Broken(AsyncSource):
        def settle(self, outcomes: Sequence[Outcome]) -> None:
            raise OSError("gone away")

    limits = policy(2, 1, limit=2)
    consume = _unknown_settle if variant == "threads" else _unknown_settle_async
    with pytest.raises(SettleException) as raised:
        consume(Broken(), limits)
    assert raised.value.report is not None
    assert set(raised.value.report.settle_unknown) <= {"t0", "t1"}
    assert raised.value.report.settle_unknown


@pytest.mark.clause("E-29")
def test_a_time_limit_around_the_async_loop_works_as_around_any_coroutine(runner: asyncio.Runner) -> None:
    source = AsyncSource()

    async def main() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await Sleeping().consume_transactions(source, policy(3, 2), clock=LoopClock())
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0
        return asyncio.get_running_loop().time()

    assert runner.run(main()) == 5
    assert sorted(source.released) == ["t0", "t1", "t2"]


@pytest.mark.clause("E-29")
def test_an_interrupt_carries_the_account_as_a_note(runner: asyncio.Runner) -> None:
    async def main() -> list[str]:
        loop = asyncio.ensure_future(
            Sleeping().consume_transactions(AsyncSource(), policy(3, 2), clock=LoopClock())
        )
        await asyncio.sleep(5)
        loop.cancel()
        with pytest.raises(asyncio.CancelledError) as raised:
            await loop
        return raised.value.__notes__

    assert (
        "the consume loop ended with it: error: 3 fetched, 0 succeeded, 0 failed, 3 unsettled"
        in runner.run(main())
    )


@pytest.mark.campaign
@pytest.mark.clause("E-17", "E-29", "E-36")
def test_whenever_the_loop_ends_each_transaction_is_told_of_once() -> None:
    """In real time, with threads that finish at about the moment when they are cut off."""
    for run in range(campaign_size(1_000)):
        pick = random.Random(run)
        source, shown = Source(), Counter[str]()
        pauses = [pick.random() * 0.004 for _ in range(64)]

        class Brief(ConsumerTask):
            def process_transaction(self, transaction: Transaction, pauses: list[float] = pauses) -> Any:
                time.sleep(pauses[int(transaction.id[1:]) % 64])

        def show(outcome: Outcome, shown: Counter[str] = shown) -> None:
            shown[outcome.transaction_id] += 1

        report = Brief().consume_transactions(
            source,
            policy(pick.randint(1, 8), pick.randint(1, 4), timeout=0.002 + pick.random() * 0.006),
            on_outcome=show,
        )
        assert report.fetched == report.succeeded + report.failed + report.unsettled
        # Transactions of a fetch that was itself cut off are not reported: they were never handed over.
        assert shown == Counter(f"t{number}" for number in range(report.fetched))
        late = source.fetched - report.fetched
        deadline = time.monotonic() + 20
        while len(source.settled) + len(source.released) < source.fetched:  # on the thread that was given up
            assert time.monotonic() < deadline
            time.sleep(0.0001)
        assert Counter(source.settled + source.released) == Counter(
            f"t{number}" for number in range(source.fetched)
        )
        assert len(source.released) == report.unsettled + late
