"""The variant on threads refuses coroutine functions before anything runs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from conquiet.errors import AsyncCallableError, TaskConfigError
from conquiet.task import (
    ConsumerTask,
    FetchException,
    Outcome,
    SettleException,
    Transaction,
    TransactionException,
)


class Nothing(ConsumerTask):
    def process_transaction(self, transaction: Transaction) -> None:
        raise AssertionError("nothing may be processed")


class One:
    """A connector with one transaction."""

    def __init__(self) -> None:
        self._left = [Transaction("a")]

    def fetch_transactions(self, batch_size: int, **extra: Any) -> Sequence[Transaction]:
        found, self._left = self._left, []
        return found


class AsyncFetch:
    async def fetch_transactions(self, batch_size: int, **extra: Any) -> Sequence[Transaction]:
        return [Transaction("a")]


class AsyncSettle(One):
    async def settle(self, outcomes: Sequence[Outcome]) -> None: ...


class AsyncRelease(One):
    async def release(self, outcomes: Sequence[Outcome]) -> None: ...


@pytest.mark.parametrize(
    ("connector", "method"),
    [
        (AsyncFetch(), "AsyncFetch.fetch_transactions"),
        (AsyncSettle(), "AsyncSettle.settle"),
        (AsyncRelease(), "AsyncRelease.release"),
    ],
)
def test_a_connector_with_coroutine_methods_is_refused_by_name(connector: Any, method: str) -> None:
    with pytest.raises(TaskConfigError, match=f"^{method} is a coroutine function: .* AsyncConsumerMixin$"):
        Nothing().consume_transactions(connector)


def test_a_coroutine_function_as_on_outcome_is_refused() -> None:
    async def on_outcome(outcome: Outcome) -> None: ...

    with pytest.raises(TaskConfigError, match="^on_outcome is a coroutine function"):
        Nothing().consume_transactions(One(), on_outcome=on_outcome)  # type: ignore[arg-type]


# What cannot be seen beforehand is refused when it is called, and never as an internal error.


async def later(*arguments: Any) -> None:
    await asyncio.sleep(0)


class Done(ConsumerTask):
    def process_transaction(self, transaction: Transaction) -> None:
        pass


class HiddenProcess(Done):
    def process_transaction(self, transaction: Transaction) -> Any:
        return later()


class HiddenFetch:
    def fetch_transactions(self, batch_size: int, **extra: Any) -> Any:
        return later()


class HiddenSettle(One):
    def settle(self, outcomes: Sequence[Outcome]) -> Any:
        return later()


def chain(error: BaseException | None) -> list[type[BaseException]]:
    return [] if error is None else [type(error), *chain(error.__cause__)]


def test_a_process_that_gives_a_coroutine_fails_with_a_documented_error() -> None:
    outcome = HiddenProcess().start_processing(Transaction("a"))
    assert chain(outcome.exception) == [TransactionException, AsyncCallableError]
    assert "HiddenProcess.process_transaction returned a coroutine" in str(outcome.exception)


def test_a_connector_that_gives_a_coroutine_ends_the_loop_with_an_engine_error() -> None:
    with pytest.raises(FetchException, match="fetch_transactions returned a coroutine") as fetch:
        Done().consume_transactions(HiddenFetch())
    assert chain(fetch.value) == [FetchException, AsyncCallableError]
    with pytest.raises(SettleException, match=r"HiddenSettle\.settle returned a coroutine") as settle:
        Done().consume_transactions(HiddenSettle())
    assert chain(settle.value) == [SettleException, AsyncCallableError]


def test_an_on_outcome_that_gives_a_coroutine_ends_the_loop_with_a_documented_error() -> None:
    with pytest.raises(AsyncCallableError, match="lambda> returned a coroutine"):
        Done().consume_transactions(One(), on_outcome=lambda outcome: later())  # type: ignore[arg-type]
