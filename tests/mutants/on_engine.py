"""Runs an engine mutant through the scenarios of tests/parity in virtual time, and through scenes of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from conquiet.connectors import AsyncIterableConnector, IterableConnector
from conquiet.errors import FlowError
from conquiet.flow import ThreadCalls
from conquiet.task import (
    AsyncConsumerTask,
    ConsumerTask,
    ExceptionCategory,
    FetchException,
    Outcome,
    SettleException,
    Transaction,
    TransactionException,
)
from conquiet.task.loop import ConsumeLoop, Source
from conquiet.task.mixins.policies import RetryPolicy
from conquiet.testing import LoopClock, VirtualDriver
from conquiet.verify.history import Violation
from tests.parity.task.scenario import Scenario
from tests.parity.task.test_scenarios import TABLE, expected, seen
from tests.parity.task.virtual import on_virtual_driver
from tests.unit.task.both import policy
from tests.unit.task.busy_loop import BusyLoop, spend


def play_engine() -> list[Violation]:
    """What differs from what is expected, by the part of the trace; none for the real engine."""
    found = [violation for scenario in TABLE for violation in _played(scenario)]
    return found + [Violation(kind, None, kind) for kind, scene in SCENES.items() if not scene()]


def _played(scenario: Scenario) -> list[Violation]:
    trace = on_virtual_driver(scenario.script, scenario.policy, seed=1)
    was, should = seen(trace, scenario), expected(scenario)
    kinds = [kind for kind in should if was[kind] != should[kind]]
    kinds += ["doubled"] * bool(trace.doubled)
    kinds += ["crowded"] * (trace.most > scenario.policy.loop.concurrency.value)
    return [Violation(kind, scenario.name, f"{was.get(kind)}, not {should.get(kind)}") for kind in kinds]


def _late_batch_goes_back() -> bool:
    released: list[str] = []

    class Blocking:
        fetches = 0

        async def fetch_transactions_async(self, batch_size: int, **extra: Any) -> list[Transaction]:
            self.fetches += 1
            if self.fetches > 1:
                return []
            spend(0.5)
            return [Transaction("late")]

        async def release_async(self, outcomes: Sequence[Outcome]) -> None:
            released.extend(outcome.transaction_id for outcome in outcomes)

    async def main() -> None:
        limits = policy(fetch=RetryPolicy(2, timeout=0.2))
        await _Nothing().consume_transactions(Blocking(), limits, clock=LoopClock())

    with asyncio.Runner(loop_factory=BusyLoop) as runner:
        runner.run(main())
    return released == ["late"]


def _foreign_cancellation_ends_the_loop() -> bool:
    batches = [[Transaction("a")]]

    def settle(outcomes: Sequence[Outcome]) -> None:
        raise asyncio.CancelledError

    driver = VirtualDriver()
    source = Source(lambda size: batches.pop() if batches else [], settle, None)
    loop = ConsumeLoop(_Plain(), source, policy(), driver.clock, ThreadCalls(), None)
    try:
        driver.run(loop.run())
    except SettleException:
        return True
    except FlowError:  # the loop waits for a settler that has gone
        return False
    return False


def _time_limit_is_heard() -> bool:
    class Computing(AsyncConsumerTask):
        async def process_transaction(self, transaction: Transaction) -> None:
            spend(0.002)

    async def main() -> float:
        await Computing().consume_transactions(
            AsyncIterableConnector(range(1_000)), policy(batch=1_000, timeout=0.3), clock=LoopClock()
        )
        return asyncio.get_running_loop().time()

    with asyncio.Runner(loop_factory=BusyLoop) as runner:
        return runner.run(main()) < 0.4


def _shared_exception_has_each_ones_id() -> bool:
    shared = TransactionException("no", ExceptionCategory.BUSINESS)

    class Refusing(ConsumerTask):
        def process_transaction(self, transaction: Transaction) -> None:
            raise shared

    told = [Refusing().start_processing(Transaction(name)).exception for name in ("a", "b")]
    return [getattr(error, "transaction_id", None) for error in told] == ["a", "b"]


def _broken_iterable_is_not_drained() -> bool:
    def numbers() -> Any:
        yield 1
        raise OSError("broken")

    try:
        _Plain().consume_transactions(IterableConnector(numbers()), policy(fetch=RetryPolicy(3)))
    except FetchException:
        return True
    return False


def _what_was_begun_does_not_go_back() -> bool:
    connector = IterableConnector(())
    outcomes = [
        Outcome(name, "unsettled", attempts=attempts, transaction=Transaction(name))  # type: ignore[arg-type]
        for name, attempts in (("begun", 1), ("unbegun", 0))
    ]
    connector.release(outcomes)
    return [transaction.id for transaction in connector.fetch_transactions(2)] == ["unbegun"]


SCENES: dict[str, Callable[[], bool]] = {
    "lost-batch": _late_batch_goes_back,
    "silent-settler": _foreign_cancellation_ends_the_loop,
    "starved": _time_limit_is_heard,
    "wrong-id": _shared_exception_has_each_ones_id,
    "falsely-drained": _broken_iterable_is_not_drained,
    "run-again": _what_was_begun_does_not_go_back,
}


class _Plain(ConsumerTask):
    def process_transaction(self, transaction: Transaction) -> None:
        pass


class _Nothing(AsyncConsumerTask):
    async def process_transaction(self, transaction: Transaction) -> None:
        pass
