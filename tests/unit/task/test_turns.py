"""Coroutines that never wait: the event loop stays everybody's, and limits count from the beginning of a call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from conquiet.connectors import AsyncIterableConnector, AsyncJobConnector
from conquiet.errors import CallTimeoutError
from conquiet.flow import Beside, Call, Flow, run_async
from conquiet.jobs import open_async_store
from conquiet.task import AsyncConsumerTask, ConsumeReport, ConsumerTask, Outcome, StopReason, Transaction
from conquiet.task.mixins.policies import RetryPolicy
from conquiet.task.mixins.utils import run_with_timeout_async
from conquiet.testing import AutojumpClock, LoopClock
from tests.unit.task.both import policy
from tests.unit.task.busy_loop import BusyLoop, spend

MANY = 1_000
EACH = 0.002


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner(loop_factory=BusyLoop) as runner:
        yield runner


class Computing(AsyncConsumerTask):
    """Computes, and never waits."""

    def __init__(self, fails: bool = False) -> None:
        self.fails = fails

    async def process_transaction(self, transaction: Transaction) -> None:
        spend(EACH)
        if self.fails:
            raise ValueError("computed in vain")


def now() -> float:
    return asyncio.get_running_loop().time()


async def consumed(task: Computing, concurrency: int = 1, **loop: Any) -> ConsumeReport:
    connector = AsyncIterableConnector(range(MANY))
    limits = policy(batch=MANY, concurrency=concurrency, **loop)
    return await task.consume_transactions(connector, limits, clock=LoopClock())


crowds = pytest.mark.parametrize("concurrency", [1, 10, 1_000])


@pytest.mark.clause("E-17", "E-01")
@crowds
@pytest.mark.parametrize("fails", [False, True])
def test_the_loops_time_limit_ends_it(runner: asyncio.Runner, concurrency: int, fails: bool) -> None:
    async def main() -> tuple[ConsumeReport, float]:
        return await consumed(Computing(fails), concurrency, timeout=0.3), now()

    report, ended = runner.run(main())
    assert report.stop_reason is StopReason.LOOP_TIMEOUT
    assert ended < 0.35  # 2 s, if nobody else is heard
    assert report.unsettled > MANY / 2


@pytest.mark.clause("E-36", "E-01")
@crowds
def test_stop_is_heard(runner: asyncio.Runner, concurrency: int) -> None:
    async def main() -> tuple[ConsumeReport, float]:
        task = Computing()
        asyncio.get_running_loop().call_later(0.3, task.stop)
        return await consumed(task, concurrency), now()

    report, ended = runner.run(main())
    assert report.stop_reason is StopReason.STOPPED
    assert ended < 0.35 + concurrency * EACH  # what has begun is finished


@crowds
def test_a_cancellation_is_heard(runner: asyncio.Runner, concurrency: int) -> None:
    async def main() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await consumed(Computing(), concurrency)
        return now()

    assert runner.run(main()) < 0.35


@crowds
def test_others_on_the_same_event_loop_have_their_turn(runner: asyncio.Runner, concurrency: int) -> None:
    async def main() -> tuple[ConsumeReport, float]:
        longest = 0.0

        async def beat() -> None:
            nonlocal longest
            while True:
                before = now()
                await asyncio.sleep(0.01)
                longest = max(longest, now() - before)

        beating = asyncio.ensure_future(beat())
        report = await consumed(Computing(), concurrency)
        beating.cancel()
        return report, longest

    report, longest = runner.run(main())
    assert report.succeeded == MANY
    assert longest < 0.05


@pytest.mark.clause("E-34")
@crowds
def test_no_lease_is_lost_meanwhile(runner: asyncio.Runner, concurrency: int) -> None:
    async def main() -> ConsumeReport:
        async with await open_async_store("memory://", clock=LoopClock()) as store:
            await store.enqueue_many("q", [{"n": n} for n in range(500)])
            connector = AsyncJobConnector(store, "q", lease_ttl=0.5)
            limits = policy(batch=500, concurrency=concurrency)
            return await Computing().consume_transactions(connector, limits, clock=LoopClock())

    report = runner.run(main())
    assert (report.succeeded, report.unsettled) == (500, 0)


def test_a_callback_that_never_waits_does_not_hold_the_loop_either(runner: asyncio.Runner) -> None:
    class Quick(AsyncConsumerTask):
        async def process_transaction(self, transaction: Transaction) -> None:
            pass

    async def main() -> float:
        longest, before = 0.0, now()

        async def on_outcome(outcome: Outcome) -> None:
            spend(EACH)

        def beat() -> None:
            nonlocal longest, before
            longest, before = max(longest, now() - before), now()
            asyncio.get_running_loop().call_later(0.01, beat)

        beat()
        await Quick().consume_transactions(
            AsyncIterableConnector(range(MANY)), policy(batch=MANY), on_outcome=on_outcome, clock=LoopClock()
        )
        return longest

    assert runner.run(main()) < 0.1


def test_flows_that_compute_take_turns(runner: asyncio.Runner) -> None:
    order: list[str] = []

    def flow(name: str) -> Flow[None]:
        for _ in range(20):
            yield Call(lambda: spend(0.006))
            order.append(name)

    def both() -> Flow[None]:
        one = yield Beside(flow("a"))
        yield from flow("b")
        assert one is not None

    runner.run(run_async(both()))
    assert 8 <= order[:24].count("a") <= 16


def test_a_request_to_cancel_comes_after_the_result_of_a_call_that_has_finished(
    runner: asyncio.Runner,
) -> None:
    results: list[int] = []

    def compute() -> int:
        spend(0.02)
        return len(results)

    def flow() -> Flow[None]:
        while True:
            results.append((yield Call(compute)))

    async def main() -> int:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await run_async(flow())
        return len(results)

    assert runner.run(main()) == results[-1] + 1


Body = Callable[[], Coroutine[Any, Any, Any]]


async def computes_first() -> str:
    spend(0.5)
    await asyncio.sleep(0.05)
    return "late"


async def computes_afterwards() -> str:
    await asyncio.sleep(0.05)
    spend(0.5)
    return "late"


async def only_computes() -> str:
    spend(0.5)
    return "late"


async def fails_late() -> str:
    spend(0.5)
    raise ValueError("late")


@pytest.mark.clause("E-15", "E-01")
@pytest.mark.parametrize("body", [computes_first, computes_afterwards, only_computes, fails_late])
def test_a_limit_counts_from_the_beginning_of_a_call(runner: asyncio.Runner, body: Body) -> None:
    class Task(AsyncConsumerTask):
        async def process_transaction(self, transaction: Transaction) -> Any:
            return await body()

    async def main() -> Outcome:
        limit = policy(process=RetryPolicy(1, timeout=0.2))
        return await Task().start_processing(Transaction("a"), limit, clock=LoopClock())

    outcome = runner.run(main())
    assert outcome.category == "TIMEOUT"
    with pytest.raises(CallTimeoutError, match="ran past its limit of 0.2 s"):
        runner.run(run_with_timeout_async(body, timeout=0.2))


@pytest.mark.clause("E-15", "E-01")
def test_as_on_threads() -> None:
    with AutojumpClock() as clock:

        class Task(ConsumerTask):
            def process_transaction(self, transaction: Transaction) -> Any:
                clock.sleep(0.5)

        outcome = Task().start_processing(
            Transaction("a"), policy(process=RetryPolicy(1, timeout=0.2)), clock=clock
        )
        assert outcome.category == "TIMEOUT"


@pytest.mark.clause("E-15")
def test_a_call_that_ends_at_its_limit_is_in_time(runner: asyncio.Runner) -> None:
    async def body() -> str:
        spend(0.1)
        await asyncio.sleep(0.05)
        spend(0.05)
        return "just"

    assert runner.run(run_with_timeout_async(body, timeout=0.2)) == "just"
