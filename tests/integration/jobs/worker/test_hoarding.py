"""Workers hold no job in advance that another worker could begin now."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from conquiet.flow import run
from conquiet.jobs import Job, JobStore, JobWorker, NewJob
from tests.integration.jobs.background import Running, until

Start = Callable[[JobWorker], Running]


@pytest.mark.parametrize("places", [1, 8])
def test_long_jobs_run_beside_each_other_on_two_workers(store: JobStore, start: Start, places: int) -> None:
    """Each job waits for all the others, so they end only if every place of both workers has one."""
    together = threading.Barrier(2 * places)
    store.enqueue_many("q", [{}] * 2 * places)
    for name in ("a", "b"):
        start(_worker(store, lambda job: together.wait(20), name, places))
    until(lambda: store.stats("q")["q"].succeeded == 2 * places)
    assert {attempt.worker for job in store.list() for attempt in job.attempts} == {"a", "b"}


@pytest.mark.parametrize("queue", ["q", "slow"], ids=["the same task", "another task"])
def test_a_worker_that_was_fast_does_not_keep_the_slow_jobs(
    store: JobStore, start: Start, queue: str
) -> None:
    together = threading.Barrier(16)
    all_began = threading.Event()

    def handle(job: Job) -> None:
        if job.payload.get("slow"):
            together.wait(20)
            all_began.set()

    store.enqueue_many("q", [{}] * 3_000)
    # A worse priority: queues take turns, and the slow jobs must not come before the fast ones have ended.
    slow = store.enqueue_many(queue, [NewJob({"slow": True}, priority=9)] * 40)
    start(_worker(store, handle, "a", 8))
    until(lambda: store.stats("q")["q"].succeeded >= 3_000)
    start(_worker(store, handle, "b", 8))
    assert all_began.wait(20)
    together.abort()  # the others end, too: they fail
    until(lambda: all(store.get(job_id).attempts for job_id in slow))


def test_an_urgent_job_does_not_wait_behind_what_a_worker_holds(store: JobStore, start: Start) -> None:
    """One worker is busy with long jobs; another begins the urgent one."""
    free, began = threading.Event(), threading.Event()

    def handle(job: Job) -> None:
        if "long" in job.payload:
            assert free.wait(20)
        if "urgent" in job.payload:
            began.set()

    store.enqueue_many("q", [{}] * 500)
    store.enqueue_many("q", [{"long": 1}] * 8)
    start(_worker(store, handle, "a", 8))
    until(lambda: store.stats("q")["q"].succeeded == 500 and store.stats("q")["q"].in_flight == 8)
    store.enqueue("q", {"urgent": 1}, priority=0)
    start(_worker(store, handle, "b", 1))
    assert began.wait(20)
    free.set()
    until(lambda: store.stats("q")["q"].succeeded == 509)


def test_what_was_only_held_goes_back_without_a_trace(store: JobStore) -> None:
    store.enqueue_many("q", [{}, {}])
    before = store.list()
    jobs = store.claim("q", 2, lease_ttl=600.0, begun=0)
    assert [result.ok for result in run(store.operations.return_many(jobs))] == [True, True]
    assert store.list() == before
    assert [result.ok for result in run(store.operations.return_many([*jobs, before[0]]))] == [False] * 3
    assert [job.lease.version for job in store.claim("q", 2)] == [2, 2]


def _worker(store: JobStore, handle: Callable[[Job], object], name: str, places: int) -> JobWorker:
    return JobWorker(store, handle, queues=["q", "slow"], concurrency=places, worker=name)
