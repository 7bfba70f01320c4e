"""Queues with slots of their own, and settings per job: its time limit, its delays, no retry."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conquiet.flow import Flow
from conquiet.jobs import (
    Job,
    JobConfigError,
    JobRejectedError,
    JobState,
    JobStore,
    JobWorker,
    RetrySchedule,
    open_store,
)
from conquiet.jobs.backends.protocol import Claim, JobRow
from tests.integration.jobs.background import Running, until

Start = Callable[[JobWorker], Running]


class Crowd:
    """A handler that counts how many jobs of each queue are inside together, and keeps them there until released."""

    def __init__(self) -> None:
        self.inside: dict[str, int] = {}
        self.most: dict[str, int] = {}
        self.open = threading.Event()
        self._lock = threading.Lock()

    def __call__(self, job: Job) -> None:
        with self._lock:
            self.inside[job.queue] = self.inside.get(job.queue, 0) + 1
            self.most[job.queue] = max(self.most.get(job.queue, 0), self.inside[job.queue])
        self.open.wait(30)
        with self._lock:
            self.inside[job.queue] -= 1


def test_a_queue_with_a_number_has_so_many_places_and_the_others_share(store: JobStore, start: Start) -> None:
    for queue in ("a", "b", "c", "d"):
        store.enqueue_many(queue, [{}] * 10)
    crowd = Crowd()
    running = start(JobWorker(store, crowd, queues={"a": 3, "b": None, "c": 1, "d": None}, concurrency=2))
    until(lambda: crowd.inside.get("a") == 3 and crowd.inside.get("c") == 1)
    until(lambda: crowd.inside.get("b", 0) + crowd.inside.get("d", 0) == 2)
    assert len(running.worker.running()) == 6
    crowd.open.set()
    until(lambda: sum(stats.succeeded for stats in store.stats().values()) == 40)
    counts = running.stop()
    assert (counts.claimed - counts.released, counts.succeeded, counts.failed) == (40, 40, 0)
    assert (crowd.most["a"], crowd.most["c"]) == (3, 1)
    assert running.worker.counts == counts


def test_until_idle_goes_on_while_one_lane_brings_work_to_another(store: JobStore) -> None:
    """b has nothing to do until the last job of a gives it work; then the other way round."""

    def hand_on(job: Job) -> None:
        if job.payload["n"]:
            store.enqueue("b" if job.queue == "a" else "a", {"n": job.payload["n"] - 1})

    store.enqueue("a", {"n": 6})
    counts = JobWorker(store, hand_on, queues={"a": 1, "b": 1}).run_until_idle()
    assert (counts.claimed, counts.succeeded) == (7, 7)
    assert {queue: stats.succeeded for queue, stats in store.stats().items()} == {"a": 4, "b": 3}


def test_lanes_on_asyncio(store: JobStore) -> None:
    async def hand_on(job: Job) -> None:
        await asyncio.sleep(0)
        if job.payload["n"]:
            store.enqueue("b", {"n": 0})

    store.enqueue_many("a", [{"n": 1}] * 5)
    worker = JobWorker(store, hand_on, queues={"a": 2, "b": 2}, isolation="async")
    assert worker.run_until_idle().succeeded == 10


def test_where_one_lane_breaks_down_the_worker_ends(
    memory: JobStore, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its back end has a bug that only one lane meets."""
    backend = memory.operations.backend
    claim = backend.claim

    def buggy(wanted: Claim) -> Flow[tuple[list[JobRow], bool]]:
        if wanted.queues == ("a",):
            raise ZeroDivisionError("no more")
        return (yield from claim(wanted))

    monkeypatch.setattr(backend, "claim", buggy)
    running = start(JobWorker(memory, print, queues={"a": 1, "b": 1}))
    with pytest.raises(ZeroDivisionError, match="no more"):
        running.end()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, -signal.SIGINT)])
def test_signals_drain_all_lanes(tmp_path: Path, number: signal.Signals, code: int) -> None:
    program = """
import sys, threading, time
from conquiet.jobs import JobWorker, open_store
store = open_store(sys.argv[1])
store.enqueue_many("a", [{}]); store.enqueue_many("b", [{}])
both = threading.Barrier(3)
def handle(job):
    both.wait()
    time.sleep(0.3)
def tell():
    both.wait()
    print("inside", flush=True)
threading.Thread(target=tell).start()
JobWorker(store, handle, queues={"a": 1, "b": 1}, handle_signals=True).run()
"""
    with subprocess.Popen(
        [sys.executable, "-c", program, f"sqlite:///{tmp_path}/jobs.db"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "inside\n"
        process.send_signal(number)
        try:
            process.wait(20)
        finally:
            process.kill()
    assert process.returncode == code
    with open_store(f"sqlite:///{tmp_path}/jobs.db") as store:
        assert [job.state for job in store.list()] == [JobState.SUCCEEDED] * 2


@pytest.mark.parametrize(
    ("queues", "message"),
    [
        ({"a": 0}, "the concurrency of queue 'a' must be an int from 1"),
        ({"a": "3"}, "the concurrency of queue 'a' must be an int"),
        ({}, "at least one queue"),
        ({"": 1}, "queue must be a non-empty str"),
    ],
)
def test_places_are_checked(memory: JobStore, queues: Any, message: str) -> None:
    with pytest.raises(JobConfigError, match=message):
        JobWorker(memory, print, queues=queues)


def test_a_limit_for_each_job(memory: JobStore) -> None:
    async def wait(job: Job) -> None:
        await asyncio.sleep(job.payload["seconds"])

    short = memory.enqueue("q", {"seconds": 60, "limit": 0.02}, max_retries=0)
    unlimited = memory.enqueue("q", {"seconds": 0.1, "limit": None})
    JobWorker(
        memory, wait, queues="q", isolation="async", execution_timeout=lambda job: job.payload["limit"]
    ).run_until_idle()
    assert memory.get(unlimited.id).state is JobState.SUCCEEDED
    failed = memory.get(short.id)
    assert (failed.state, failed.attempts[0].category) == (JobState.FAILED, "TIMEOUT")


def test_delays_for_each_job(memory: JobStore) -> None:
    def fail(job: Job) -> None:
        raise ValueError

    jobs = {name: memory.enqueue("q", {"wait": wait}) for name, wait in (("long", 1e6), ("store's", None))}
    JobWorker(
        memory,
        fail,
        queues="q",
        retry_delays=lambda job: job.payload["wait"] and RetrySchedule(9, job.payload["wait"], 1e6),
    ).run_until_idle()
    waits = {}
    for name, job in jobs.items():
        left = memory.get(job.id)
        assert left.retry_at is not None
        waits[name] = (left.retry_at - left.attempts[-1].ended_at).total_seconds()
    assert waits["store's"] <= 0.01 < waits["long"]  # fails once in 1e8 runs: delays are random


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_a_rejected_job_is_not_retried(store: JobStore, isolation: str) -> None:
    rejected = store.enqueue("q", {"reject": True})
    neighbour = store.enqueue("q", {"reject": False})
    counts = JobWorker(store, reject, queues="q", isolation=isolation, concurrency=1).run_until_idle()
    assert (counts.failed, counts.succeeded) == (1, 1)
    failed = store.get(rejected.id)
    assert (failed.state, failed.retries, len(failed.attempts)) == (JobState.FAILED, 0, 1)
    assert failed.error.endswith("this is no order")
    assert store.get(neighbour.id).state is JobState.SUCCEEDED


def reject(job: Job) -> None:
    if job.payload["reject"]:
        raise JobRejectedError("this is no order")
