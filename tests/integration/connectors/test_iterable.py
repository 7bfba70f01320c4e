"""Iterables through the engine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from conquiet.task import Transaction
from conquiet.task.exceptions import FetchException
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
