"""A CancelledError that a callee raises by itself is a failure; only a request to cancel the loop cancels it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from conquiet.clock import SYSTEM_CLOCK
from conquiet.connectors import AsyncIterableConnector
from conquiet.flow import Call, Cancelled, Crew, Flow, run, run_async
from conquiet.task import (
    AsyncConsumerTask,
    ConsumeReport,
    ConsumerTask,
    EngineError,
    ExceptionCategory,
    Outcome,
    Transaction,
    TransactionException,
)
from conquiet.task.exceptions import FetchException, SettleException
from conquiet.task.mixins.policies import RetryPolicy
from tests.unit.task.both import Batches, Engine, on_both, policy, transactions

pytestmark = pytest.mark.clause("E-29")


def cancelled(*args: Any, **extra: Any) -> None:
    raise asyncio.CancelledError("a task inside was cancelled")


@on_both
def test_from_fetch_it_is_retried(variant: str) -> None:
    engine, calls = Engine(variant), list[int]()

    class Source(Batches):
        def fetch(self, size: int, **extra: Any) -> list[Transaction]:
            calls.append(size)
            if len(calls) == 1:
                cancelled()
            return super().fetch(size)

    report = engine.consume(engine.task(), Source(transactions(2)), policy(fetch=RetryPolicy(2), batch=2))
    assert report.succeeded == 2


@on_both
def test_from_every_fetch_it_ends_the_loop_as_a_fetch_that_failed(variant: str) -> None:
    class Source(Batches):
        fetch = cancelled

    engine = Engine(variant)
    with pytest.raises(FetchException, match="after 3 attempts: CancelledError") as caught:
        engine.consume(engine.task(), Source(()), policy(fetch=RetryPolicy(3)))
    assert caught.value.report is not None


@on_both
def test_from_settle_it_ends_the_loop_and_what_was_not_settled_is_reported(variant: str) -> None:
    class Source(Batches):
        settle = cancelled

    engine = Engine(variant)
    with pytest.raises(SettleException, match="could not settle") as caught:
        engine.consume(engine.task(), Source(transactions(3_000)), policy(batch=10))
    report = caught.value.report
    assert report is not None
    assert report.succeeded == 0
    assert report.unsettled == report.fetched > 0


@on_both
def test_from_on_outcome_it_ends_the_loop_with_an_error(variant: str) -> None:
    engine = Engine(variant)
    with pytest.raises(EngineError, match="on_outcome raised CancelledError") as caught:
        engine.consume(engine.task(), transactions(3_000), policy(batch=10), on_outcome=cancelled)
    assert caught.value.report is not None
    assert isinstance(caught.value.__cause__, asyncio.CancelledError)


def test_from_release_it_is_a_release_that_failed() -> None:
    class Source:
        def fetch_transactions(self, size: int) -> list[Transaction]:
            task.stop()
            return transactions(1)

        release = cancelled

    task = type("Task", (ConsumerTask,), {"process_transaction": lambda self, tx: None})()
    with pytest.raises(SettleException, match="could not release"):
        task.consume_transactions(Source())


@on_both
@pytest.mark.parametrize("step", ["process", "success", "exception"])
def test_from_a_step_it_is_a_failure_of_the_transaction(variant: str, step: str) -> None:
    engine = Engine(variant)
    steps: dict[str, Any] = {step: cancelled}
    if step == "exception":
        steps["process"] = cancelled
    report = engine.consume(engine.task(**steps), transactions(2), policy(batch=2))
    assert (report.failed, report.by_category) == (2, {"SYSTEM": 2})


@pytest.mark.parametrize("then", ["waits", "returns", "raises"])
@pytest.mark.parametrize("limit", [None, 30])
@pytest.mark.parametrize("step", ["process", "success", "exception"])
def test_a_step_that_cancels_its_own_task_has_failed(step: str, limit: float | None, then: str) -> None:
    async def cancelling(self: Any, transaction: Transaction, *args: Any) -> None:
        if transaction.id != "tx-1":
            return
        current = asyncio.current_task()
        assert current is not None
        current.cancel()
        if then == "waits":
            await asyncio.sleep(30)
        if then == "raises":
            raise ValueError("no such colour")

    names = {
        "process": "process_transaction",
        "success": "handle_transaction_success",
        "exception": "handle_transaction_exception",
    }

    async def process(self: Any, transaction: Transaction) -> None:
        if step == "exception" and transaction.id == "tx-1":
            raise TransactionException("no funds", ExceptionCategory.BUSINESS)

    steps: dict[str, Any] = {"process_transaction": process, names[step]: cancelling}
    task = type("Task", (AsyncConsumerTask,), steps)()
    once = RetryPolicy(1, timeout=limit)
    limits = policy(batch=2, process=once, success=once, exception=once)

    async def main() -> ConsumeReport:
        report: ConsumeReport = await task.consume_transactions(
            AsyncIterableConnector(transactions(4)), limits
        )
        current = asyncio.current_task()
        assert current is not None
        assert current.cancelling() == 0
        return report

    report = asyncio.run(main())
    assert (report.succeeded, report.failed, report.unsettled) == (3, 1, 0)
    (failed,) = report.outcomes
    assert (failed.transaction_id, str(failed.category)) == ("tx-1", "SYSTEM")


def test_who_cancels_every_task_of_the_event_loop_cancels_the_loop_and_fails_no_transaction() -> None:
    """As `asyncio.run` does when its main coroutine ends before the loop that it started."""
    handled: list[Any] = []
    begun = asyncio.Event()

    class Task(AsyncConsumerTask):
        async def process_transaction(self, transaction: Transaction) -> None:
            begun.set()
            await asyncio.sleep(30)

        async def handle_transaction_exception(self, transaction: Transaction, exception: Any) -> None:
            handled.append(exception)

    shown: list[Outcome] = []

    async def main() -> None:
        loop = asyncio.ensure_future(
            Task().consume_transactions(
                AsyncIterableConnector(transactions(3)),
                policy(concurrency=2, batch=3),
                on_outcome=shown.append,
            )
        )
        await begun.wait()
        others = asyncio.all_tasks() - {asyncio.current_task(), loop}
        for one in (*others, loop):  # in the least favourable order
            one.cancel()
        with pytest.raises(asyncio.CancelledError):
            await loop

    asyncio.run(main())
    assert handled == []
    assert {str(outcome.status) for outcome in shown} == {"unsettled"}


def test_a_part_of_a_crew_that_raises_it_ends_the_crew() -> None:
    crew: Crew[int] = Crew("crew", 1, work=lambda item: _raising(), clock=SYSTEM_CLOCK)

    def leader() -> Flow[None]:
        crew.add([1])
        yield from crew.grow()
        yield from crew.finish(None)

    run(leader())
    assert isinstance(crew.failure, Cancelled)
    assert crew.broken.is_set()


def _raising() -> Flow[None]:
    yield Call(cancelled)


def test_a_call_tells_whether_a_request_interrupted_it() -> None:
    calls: list[Call] = []

    def flow() -> Flow[None]:
        for fn in (cancelled, lambda: asyncio.sleep(30)):
            calls.append(Call(fn))
            try:
                yield calls[-1]
            except Cancelled:
                pass

    async def main() -> None:
        running = asyncio.ensure_future(run_async(flow()))
        await asyncio.sleep(0)
        running.cancel()
        await running

    asyncio.run(main())
    assert [call.interrupted for call in calls] == [False, True]
