"""The in-process queue through the engine, on threads and on asyncio."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from conquiet.connectors import AsyncLocalQueueConnector, LocalQueueConnector
from conquiet.local import PriorityDelayQueue
from conquiet.task import ConsumeReport, StopReason, Transaction
from conquiet.task.mixins.policies import ConsumerPolicy
from tests.integration.connectors.variants import Consumer, policy

pytestmark = pytest.mark.clause("E-34")


def consume(
    consumer: Consumer, queue: PriorityDelayQueue, rules: ConsumerPolicy, **options: Any
) -> ConsumeReport:
    if consumer.variant == "threads":
        return consumer.task.consume_transactions(LocalQueueConnector(queue, **options), rules)
    return asyncio.run(consumer.task.consume_transactions(AsyncLocalQueueConnector(queue, **options), rules))


def test_by_priority_and_then_in_order(variant: str) -> None:
    queue, seen = PriorityDelayQueue(), []
    for name, priority in (("a", "low"), ("b", "normal"), ("c", "high"), ("d", "normal")):
        queue.enqueue(name, priority)
    report = consume(
        Consumer(variant, lambda tx: seen.append(tx.payload)), queue, policy(concurrency=1), poll_timeout=0
    )
    assert (seen, report.succeeded) == (["c", "b", "d", "a"], 4)


def test_a_fetch_waits_for_what_comes(variant: str) -> None:
    queue, seen = PriorityDelayQueue(), []
    queue.enqueue("delayed", delay_seconds=0.2)
    threading.Timer(0.05, queue.enqueue, ("later",)).start()
    report = consume(Consumer(variant, lambda tx: seen.append(tx.payload)), queue, policy(batch=1, limit=2))
    assert (seen, report.stop_reason) == (["later", "delayed"], StopReason.LIMIT)


def test_what_was_not_begun_goes_back_to_its_place(variant: str) -> None:
    queue = PriorityDelayQueue()
    items = [queue.enqueue(n) for n in range(5)]
    consumer = Consumer(variant)

    def process(tx: Transaction) -> None:
        queue.enqueue("new", "high")
        queue.shutdown()
        consumer.task.stop()

    consumer.process = process
    report = consume(consumer, queue, policy(batch=5, concurrency=1), poll_timeout=0)
    assert (report.succeeded, report.unsettled) == (1, 4)
    assert [queue.dequeue(block=False).job for _ in range(5)] == ["new", 1, 2, 3, 4]
    assert items[1].seq == 1


def test_an_item_that_comes_when_a_fetch_was_given_up_is_not_lost(variant: str) -> None:
    queue = PriorityDelayQueue()
    timer = threading.Timer(0.3, queue.enqueue, ("late",))
    timer.start()

    report = consume(Consumer(variant), queue, policy(timeout=0.1))
    assert (report.fetched, report.stop_reason) == (0, StopReason.LOOP_TIMEOUT)
    timer.join()
    deadline = time.monotonic() + 5
    while (item := queue.dequeue(timeout=0.1)) is None:
        assert time.monotonic() < deadline
    assert item.job == "late"
