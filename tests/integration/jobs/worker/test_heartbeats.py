"""Leases are kept alive while a worker holds them, and no longer; observed in the store."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from itertools import pairwise

import pytest

from conquiet.jobs import Job, JobContext, JobState, JobStore, JobWorker
from tests.integration.jobs.background import Running, until

Start = Callable[[JobWorker], Running]


def expiries(store: JobStore, job_id: str, seconds: float) -> list[float]:
    """The different expiry times of the job's lease, observed over this many seconds."""
    seen: dict[float, None] = {}
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        job = store.get(job_id)
        if job.lease is not None:
            seen[job.lease.expires_at.timestamp()] = None
        time.sleep(0.005)
    return list(seen)


@pytest.mark.clause("J-16", "J-15")
def test_heartbeats_come_every_third_of_the_lease_and_end_with_the_job(store: JobStore, start: Start) -> None:
    ttl, go_on = 0.5, threading.Event()
    job = store.enqueue("q", {})
    start(JobWorker(store, lambda job: go_on.wait(30), queues="q", lease_ttl=ttl))
    until(lambda: store.get(job.id).state is JobState.IN_FLIGHT)
    seen = expiries(store, job.id, 6 * ttl / 3)
    gaps = [after - before for before, after in pairwise(seen)]
    assert 3 <= len(gaps) <= 7  # 6 on an idle machine
    assert sorted(gaps)[len(gaps) // 2] == pytest.approx(ttl / 3, rel=0.25)
    assert min(gaps) > 0  # always later than before
    assert store.get(job.id).lease.ttl == ttl
    go_on.set()
    until(lambda: store.get(job.id).state is JobState.SUCCEEDED)
    assert expiries(store, job.id, ttl) == []


@pytest.mark.clause("J-16")
def test_heartbeats_end_when_the_job_is_cut_off(store: JobStore, start: Start) -> None:
    """A thread that the worker abandons keeps its lease only until it expires."""
    ttl, go_on = 0.4, threading.Event()
    job = store.enqueue("q", {})
    running = start(JobWorker(store, lambda job: go_on.wait(30), queues="q", lease_ttl=ttl))
    until(lambda: running.worker.running())
    running.worker.stop()
    counts = running.stop()
    assert counts.abandoned == 1
    (expires_at,) = expiries(store, job.id, 0.05)
    (again,) = until(lambda: store.claim("q"))
    go_on.set()
    assert again.lease.version == 2
    assert again.attempts[0].outcome == "lease expired"
    assert again.attempts[0].ended_at.timestamp() == pytest.approx(expires_at, abs=1e-6)


@pytest.mark.clause("J-16", "J-11")
def test_jobs_claimed_ahead_are_kept_alive_too(store: JobStore, start: Start) -> None:
    """One at a time, the first one slow: the others wait in this worker for several lease times, and are not lost."""
    ttl, handled = 0.4, []

    def handle(job: Job) -> None:
        handled.append(job.payload["n"])
        if len(handled) == 1:
            time.sleep(3 * ttl)

    ids = store.enqueue_many("q", [{"n": number} for number in range(6)])
    running = start(JobWorker(store, handle, queues="q", concurrency=1, prefetch=5, lease_ttl=ttl))
    until(lambda: store.stats("q")["q"].in_flight == 6)
    while len(handled) < 6:
        assert store.claim("q", limit=10) == []  # a rival, which would get any job whose lease expires
        time.sleep(0.01)
    until(lambda: store.stats("q")["q"].succeeded == 6)
    assert handled == list(range(6))
    for job in map(store.get, ids):
        assert [(a.number, a.outcome) for a in job.attempts] == [(1, "succeeded")]
    assert running.stop().lost == 0


@pytest.mark.clause("J-15")
def test_the_lease_time_is_the_workers_own(store: JobStore, start: Start) -> None:
    """The default is five seconds."""
    seen: dict[str, float] = {}

    def handle(job: Job) -> None:
        leased = store.get(job.id).lease
        seen[job.queue] = leased.ttl

    for queue in ("default", "long"):
        store.enqueue(queue, {})
    start(JobWorker(store, handle, queues="default"))
    start(JobWorker(store, handle, queues="long", lease_ttl=90))
    until(lambda: len(seen) == 2)
    assert seen == {"default": 5.0, "long": 90.0}


@pytest.mark.clause("J-16", "J-09")
def test_a_lost_lease_is_told_to_the_handler_and_its_result_discarded(
    store: JobStore, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    """The test ends the lease in the store; the next claim, by the same worker, is another lease."""
    entered, told = threading.Event(), threading.Event()
    contexts: list[JobContext] = []

    def handle(job: Job, context: JobContext) -> None:
        contexts.append(context)
        if len(contexts) == 1:
            entered.set()
            until(context.lease_lost.is_set)
            told.set()

    job = store.enqueue("q", {})
    running = start(JobWorker(store, handle, queues="q", lease_ttl=0.3, concurrency=1))
    assert entered.wait(10)
    store.release(contexts[0].job)
    assert told.wait(10)
    until(lambda: store.get(job.id).state is JobState.SUCCEEDED)
    done = store.get(job.id)
    counts = running.stop()
    assert [(a.number, a.outcome) for a in done.attempts] == [(1, "released"), (2, "succeeded")]
    assert (contexts[0].version, contexts[1].version) == (1, 2)
    assert contexts[0].token != contexts[1].token
    assert not contexts[1].lease_lost.is_set()
    assert (counts.lost, counts.succeeded) == (1, 1)
    said = [record.getMessage() for record in caplog.records if record.name == "conquiet.jobs"]
    assert said == [f"job {job.id}: the lease was lost; its result will be discarded"]
