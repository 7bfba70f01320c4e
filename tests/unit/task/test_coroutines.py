"""Coroutine functions in the variant on threads are refused before anything runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from conquiet.errors import TaskConfigError
from conquiet.task import ConsumerTask, Outcome, Transaction


class Nothing(ConsumerTask):
    def process_transaction(self, transaction: Transaction) -> None:
        raise AssertionError("nothing may be processed")


class One:
    """A connector that has one transaction."""

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
