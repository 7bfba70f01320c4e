"""A worker of several queues serves them in turn: a long queue does not keep the others waiting."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from conquiet.connectors import JobConnector
from conquiet.flow import run
from conquiet.jobs import Job, JobStore, JobWorker
from tests.integration.jobs.background import Running, until

Start = Callable[[JobWorker], Running]


@pytest.mark.parametrize("concurrency", [1, 8])
def test_one_job_is_not_behind_a_thousand_of_another_queue(store: JobStore, concurrency: int) -> None:
    store.enqueue_many("long", [{}] * 1_000)
    store.enqueue("short", {})
    order: list[str] = []
    worker = JobWorker(
        store, lambda job: order.append(job.queue), queues=["long", "short"], concurrency=concurrency
    )
    worker.run_until_idle()
    assert len(order) == 1_001
    assert order.index("short") <= 2 * concurrency


def test_nor_when_it_comes_later(store: JobStore, start: Start) -> None:
    """Whatever the worker holds in advance comes first."""
    store.enqueue_many("long", [{}] * 1_000)
    order: list[str] = []
    entered, go_on = threading.Event(), threading.Event()

    async def handle(job: Job) -> None:
        order.append(job.queue)
        if len(order) == 100:
            entered.set()
            await asyncio.to_thread(go_on.wait, 30)

    worker = JobWorker(store, handle, queues=["long", "short"], isolation="async", concurrency=1, prefetch=10)
    start(worker)
    assert entered.wait(30)
    store.enqueue("short", {})
    go_on.set()
    until(lambda: len(order) == 1_001)
    assert 100 <= order.index("short") <= 100 + 2 * 11


def test_queues_take_turns_from_claim_to_claim(store: JobStore) -> None:
    """A worker with one place claims one job at a time. A queue without jobs does not use up a turn."""
    for queue in ("a", "b", "c"):
        store.enqueue_many(queue, [{}] * 4)
    order: list[str] = []
    worker = JobWorker(
        store,
        lambda job: order.append(job.queue),
        queues=["a", "empty", "b", "c"],
        concurrency=1,
        prefetch=0,
    )
    worker.run_until_idle()
    assert "".join(order) == "abc" * 4


def test_a_better_priority_comes_first_in_every_queue(store: JobStore) -> None:
    store.enqueue_many("a", [{}] * 3)
    for _ in range(3):
        store.enqueue("b", {}, priority=0)
    store.enqueue_many("b", [{}] * 2)
    claimed = store.claim(["a", "b"], limit=10)
    assert "".join(job.queue for job in claimed) == "bbb" + "ababa"


def test_what_begins_at_once_is_what_comes_first(store: JobStore) -> None:
    for queue in ("a", "b"):
        store.enqueue_many(queue, [{}] * 3)
    claimed = store.claim(["b", "a"], limit=5, begun=3)
    assert [(job.queue, job.lease is not None and job.lease.begun) for job in claimed] == [
        ("b", True),
        ("a", True),
        ("b", True),
        ("a", False),
        ("b", False),
    ]


def test_the_engine_takes_turns_too(store: JobStore) -> None:
    for queue in ("a", "b"):
        store.enqueue_many(queue, [{}] * 2)
    connector = JobConnector(store, ["a", "b"])
    fetched = [transaction.metadata["job"].queue for _ in range(4) for transaction in run(connector.fetch(1))]
    assert fetched == ["a", "b", "a", "b"]
