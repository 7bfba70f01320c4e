"""Iterables through the engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

import pytest

from conquiet.connectors import IterableConnector
from conquiet.task import ConsumerTask, Transaction
from conquiet.task.exceptions import FetchException
from conquiet.task.mixins.policies import ConsumerPolicy, ConsumerSteps, FetchPolicy, RetryPolicy
from tests.integration.connectors.variants import Consumer, policy

pytestmark = pytest.mark.clause("E-34")


def test_payloads_and_transactions(variant: str) -> None:
    seen = []
    items = ["a", Transaction("mine", "b"), "c"]
    report = Consumer(variant, lambda tx: seen.append((tx.id, tx.payload))).on_items(
        items, policy(batch=2, concurrency=1)
    )
    assert seen == [("0", "a"), ("mine", "b"), ("2", "c")]
    assert report.succeeded == 3


def test_asynchronous_ones() -> None:
    async def numbers() -> AsyncIterator[int]:
        for number in range(5):
            yield number

    report = Consumer("asyncio").on_items(numbers(), policy(batch=2))
    assert report.succeeded == 5


def test_what_came_before_an_exception_is_processed_first(variant: str) -> None:
    def numbers() -> Iterator[int]:
        yield from range(3)
        raise OSError("the file ends in the middle of a line")

    seen: list[int] = []
    with pytest.raises(FetchException, match="in the middle of a line") as caught:
        Consumer(variant, lambda tx: seen.append(tx.payload)).on_items(
            numbers(), policy(batch=10, concurrency=1)
        )
    assert seen == [0, 1, 2]
    assert caught.value.report is not None
    assert caught.value.report.succeeded == 3


class Flaky:
    """An iterator that raises once in the middle, and then goes on."""

    def __init__(self) -> None:
        self._numbers = iter(range(4))
        self._raised = False

    def __iter__(self) -> Flaky:
        return self

    def __next__(self) -> int:
        number = next(self._numbers)
        if number == 2 and not self._raised:
            self._raised = True
            raise OSError("once")
        return number


@pytest.mark.parametrize("batch", [1, 2, 10])
@pytest.mark.parametrize("cancels", [False, True])
def test_a_generator_that_broke_is_not_drained(variant: str, batch: int, cancels: bool) -> None:
    """Retrying a fetch does not help: a generator that has raised is at its end."""

    def numbers() -> Iterator[int]:
        yield from range(5)
        if cancels:
            raise asyncio.CancelledError
        raise OSError("the file ends in the middle of a line")

    seen: list[int] = []
    with pytest.raises(
        FetchException, match="CancelledError" if cancels else "in the middle of a line"
    ) as caught:
        Consumer(variant, lambda tx: seen.append(tx.payload)).on_items(map(int, numbers()), retrying(batch))
    assert seen == [0, 1, 2, 3, 4]
    assert caught.value.report is not None
    assert caught.value.report.succeeded == 5


def test_nor_is_an_asynchronous_one() -> None:
    async def numbers() -> AsyncIterator[int]:
        for number in range(5):
            yield number
        raise OSError("the connection is gone")

    with pytest.raises(FetchException, match="the connection is gone"):
        Consumer("asyncio").on_items(numbers(), retrying(2))


@pytest.mark.parametrize("batch", [1, 10])
def test_an_iterator_that_goes_on_after_an_exception_does(variant: str, batch: int) -> None:
    seen: list[int] = []
    report = Consumer(variant, lambda tx: seen.append(tx.payload)).on_items(Flaky(), retrying(batch))
    assert seen == [0, 1, 3]
    assert report.succeeded == 3


def test_what_was_not_begun_is_fetched_by_the_next_loop() -> None:
    connector, seen = IterableConnector(range(6)), list[int]()

    class Once(ConsumerTask):
        def process_transaction(self, transaction: Transaction) -> None:
            seen.append(transaction.payload)
            self.stop()

    while len(seen) < 6:
        Once().consume_transactions(connector, policy(batch=4, concurrency=1))
    assert sorted(seen) == [0, 1, 2, 3, 4, 5]


def retrying(batch: int) -> ConsumerPolicy:
    return replace(
        policy(batch=batch, concurrency=1),
        steps=ConsumerSteps(fetch=FetchPolicy(RetryPolicy(max_attempts=3))),
    )
