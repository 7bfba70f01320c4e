"""stop(): claims nothing more, gives back jobs not yet begun, finishes the others. A second one ends immediately."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from conquiet.jobs import Job, JobConfigError, JobState, JobStore, JobWorker
from tests.integration.jobs.background import Running, until
from tests.integration.jobs.handlers import LINGER, notes, words

Start = Callable[[JobWorker], Running]


def test_unstarted_jobs_are_given_back_at_once_and_the_running_one_is_finished(
    store: JobStore, start: Start
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def handle(job: Job) -> None:
        begun.set()
        go_on.wait(30)

    first, *others = store.enqueue_many("q", [{}] * 5)
    running = start(JobWorker(store, handle, queues="q", concurrency=1, prefetch=4))
    assert begun.wait(20)  # else the first would be given back as well
    assert store.stats("q")["q"].in_flight == 5
    running.worker.stop()
    asked = time.monotonic()
    until(lambda: store.stats("q")["q"].ready == 4)
    assert time.monotonic() - asked < 1.0  # the lease lasts five
    late = store.enqueue("q", {})
    time.sleep(0.1)
    assert not running.ended  # it waits for the handler
    assert (store.get(late.id).state, store.get(first).state) == (JobState.READY, JobState.IN_FLIGHT)
    for job in map(store.get, others):
        assert (job.retries, [a.outcome for a in job.attempts]) == (0, ["released"])
    assert [job.id for job in store.claim("q", limit=10)] == [*others, late.id]
    go_on.set()
    counts = running.end()
    assert (counts.claimed, counts.succeeded, counts.released, counts.lost) == (5, 1, 4, 0)
    assert store.get(first).state is JobState.SUCCEEDED


@pytest.mark.parametrize("how", ["second stop", "shutdown_timeout"])
def test_in_the_end_handlers_are_cut_off_as_their_isolation_allows(
    placed: tuple[JobStore, str], start: Start, tmp_path: Path, how: str
) -> None:
    store, isolation = placed
    job = store.enqueue(
        "q", {"notes": str(tmp_path / "notes"), "seconds": 20 if isolation != "thread" else 2}
    )
    patience = 30.0 if how == "second stop" else 0.2
    worker = JobWorker(store, LINGER[isolation], queues="q", isolation=isolation, shutdown_timeout=patience)
    running = start(worker)
    until(lambda: words(tmp_path / "notes"))
    worker.stop()
    if how == "second stop":
        time.sleep(0.05)
        assert not running.ended
        worker.stop()
    asked = time.monotonic()
    counts = running.end()
    assert time.monotonic() - asked < 1.5
    left = store.get(job.id)
    if isolation == "thread":
        assert (counts.abandoned, counts.released) == (1, 0)
        assert left.state is JobState.IN_FLIGHT  # giving it back could let it run twice at the same time
    else:
        assert (counts.abandoned, counts.released) == (0, 1)
        assert (left.state, left.retries) == (JobState.READY, 0)
        assert [a.outcome for a in left.attempts] == ["released"]
    ((_, pid, _), *more) = notes(tmp_path / "notes")
    assert [word for word, _, _ in more] == (["cancelled"] if isolation == "async" else [])
    if isolation == "process":
        assert not Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize("isolation", ["thread", "async"])
def test_an_idle_worker_ends_promptly(store: JobStore, start: Start, isolation: str) -> None:
    running = start(JobWorker(store, LINGER[isolation], queues="q", isolation=isolation))
    time.sleep(0.2)  # it has found nothing, and waits
    asked = time.monotonic()
    running.stop()
    assert time.monotonic() - asked < 0.5


def test_stopped_before_it_runs_it_claims_nothing(store: JobStore) -> None:
    job = store.enqueue("q", {})
    worker = JobWorker(store, lambda job: None, queues="q")
    worker.stop()
    assert worker.run().claimed == 0
    assert store.get(job.id).attempts == ()


def test_it_may_run_again_but_not_twice_at_once_and_once_stopped_it_stays_so(
    memory: JobStore, start: Start
) -> None:
    go_on = threading.Event()
    worker = JobWorker(memory, lambda job: go_on.wait(30), queues="q")
    go_on.set()
    for _ in range(2):
        memory.enqueue("q", {})
        assert worker.run_until_idle().succeeded == 1
    go_on.clear()
    memory.enqueue("q", {})
    running = start(worker)
    until(worker.running)
    for again in (worker.run, worker.run_until_idle):
        with pytest.raises(JobConfigError, match="this worker is already running"):
            again()
    go_on.set()
    running.stop()
    memory.enqueue("q", {})
    assert worker.run_until_idle().claimed == 0


def test_until_idle_delayed_jobs_count_only_if_told_so(store: JobStore) -> None:
    seen = []

    def handle(job: Job) -> None:
        seen.append(job.payload["n"])
        if job.payload["n"] == 1 and seen.count(1) < 3:
            raise ValueError("again, later")

    store.enqueue("q", {"n": 0})
    store.enqueue("q", {"n": 2}, delay=0.4)
    worker = JobWorker(store, handle, queues="q")
    assert worker.run_until_idle().succeeded == 1
    store.enqueue("q", {"n": 1})
    assert worker.run_until_idle(wait_for_delayed=True).succeeded == 2
    assert sorted(seen) == [0, 1, 1, 1, 2]


def test_until_idle_what_others_hold_is_waited_for_only_if_told_so(store: JobStore) -> None:
    """A job held by another worker may come back."""
    store.enqueue("q", {})
    (elsewhere,) = store.claim("q", lease_ttl=0.3)
    worker = JobWorker(store, lambda job: None, queues="q")
    assert worker.run_until_idle().claimed == 0
    assert worker.run_until_idle(wait_for_delayed=True).succeeded == 1
    assert [a.outcome for a in store.get(elsewhere.id).attempts] == ["lease expired", "succeeded"]


def test_inside_a_loop_of_ones_own(store: JobStore) -> None:
    seen = []

    async def handle(job: Job) -> None:
        seen.append(job.id)

    async def main() -> None:
        worker = JobWorker(store, handle, queues="q", isolation="async")
        job = store.enqueue("q", {})
        assert (await worker.run_async(until_idle=True)).succeeded == 1
        task = asyncio.ensure_future(worker.run_async())
        other = store.enqueue("q", {})
        await asyncio.to_thread(until, lambda: len(seen) == 2)
        worker.stop()
        assert (await asyncio.wait_for(task, 5)).succeeded == 1
        assert seen == [job.id, other.id]

    asyncio.run(main())
