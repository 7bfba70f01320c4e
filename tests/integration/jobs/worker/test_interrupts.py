"""Handlers that raise a BaseException: nothing is lost, nothing hangs, and a request to end is followed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from conquiet.jobs import Job, JobContext, JobState, JobStore, JobWorker
from tests.integration.jobs.background import Running, until

Start = Callable[[JobWorker], Running]
# The job's outcome: a failure, with bounded retries like any other; or, as at Ctrl-C, given back.
ENDS = {SystemExit: "failed", KeyboardInterrupt: "released"}


@pytest.mark.parametrize("isolation", ["thread", "async"])
@pytest.mark.parametrize("error", ENDS)
def test_a_handler_that_ends_the_program_ends_the_worker_in_order(
    store: JobStore, start: Start, error: type[BaseException], isolation: str
) -> None:
    """Running jobs are finished, jobs not yet begun are given back, and run() raises the error."""
    both = threading.Barrier(2)

    def handle(job: Job) -> None:
        both.wait(10)
        if job.payload["ends"]:
            raise error("enough")
        until(lambda: store.get(ending.id).lease is None)

    async def handle_async(job: Job) -> None:
        await asyncio.to_thread(both.wait, 10)
        if job.payload["ends"]:
            raise error("enough")
        await asyncio.to_thread(until, lambda: store.get(ending.id).lease is None)

    ending = store.enqueue("q", {"ends": True})
    other = store.enqueue("q", {"ends": False})
    unstarted = store.enqueue_many("q", [{"ends": True}] * 3)
    handler = handle if isolation == "thread" else handle_async
    running = start(JobWorker(store, handler, queues="q", isolation=isolation, concurrency=2, prefetch=3))
    with pytest.raises(error, match="enough"):
        running.end()
    ended = store.get(ending.id)
    outcome = ENDS[error]
    assert (ended.state, [a.outcome for a in ended.attempts]) == (JobState.READY, [outcome])
    assert ended.retries == (outcome == "failed")
    assert store.get(other.id).state is JobState.SUCCEEDED
    for job in map(store.get, unstarted):
        assert (job.state, job.retries, {a.outcome for a in job.attempts}) == (
            JobState.READY,
            0,
            {"released"},
        )


def leave(job: Job) -> None:
    raise SystemExit(3)


def test_in_a_process_it_is_only_a_failure(memory: JobStore) -> None:
    job = memory.enqueue("q", {}, max_retries=1)
    worker = JobWorker(memory, leave, queues="q", isolation="process")
    assert worker.run_until_idle(wait_for_delayed=True).failed == 2
    assert memory.get(job.id).error == "SystemExit: 3"


@pytest.mark.parametrize("isolation", ["thread", "async"])
def test_a_cancellation_that_nobody_asked_for_is_a_failure(memory: JobStore, isolation: str) -> None:
    """A handler lets the cancellation of something it awaited escape, more often than there are slots."""

    async def handle_async(job: Job) -> None:
        if job.payload["cancelled"]:
            task = asyncio.ensure_future(asyncio.sleep(60))
            task.cancel()
            await task

    def handle(job: Job) -> None:
        if job.payload["cancelled"]:
            raise asyncio.CancelledError

    bad = memory.enqueue_many("q", [{"cancelled": True}] * 6)
    memory.enqueue_many("q", [{"cancelled": False}] * 6)
    handler = handle if isolation == "thread" else handle_async
    worker = JobWorker(memory, handler, queues="q", isolation=isolation, concurrency=2)
    counts = worker.run_until_idle(wait_for_delayed=True)
    assert (counts.failed, counts.succeeded, counts.released) == (4 * 6, 6, 0)
    for job in map(memory.get, bad):
        assert (job.state, job.attempts[0].error_type) == (JobState.FAILED, "CancelledError")


def test_cancelling_run_async_drains(memory: JobStore) -> None:
    """The task that runs the worker is cancelled: running jobs are finished, jobs not yet begun are given back."""
    told: list[Any] = []

    async def handle(job: Job, context: JobContext) -> None:
        told.append(job.id)
        await asyncio.sleep(0.1)

    ids = memory.enqueue_many("q", [{}] * 4)

    async def main() -> None:
        worker = JobWorker(memory, handle, queues="q", isolation="async", concurrency=1, prefetch=3)
        task = asyncio.ensure_future(worker.run_async())
        await asyncio.to_thread(until, lambda: told)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (worker.counts.succeeded, worker.counts.released) == (1, 3)

    asyncio.run(main())
    assert told == ids[:1]
    assert [memory.get(job_id).state for job_id in ids] == [JobState.SUCCEEDED] + [JobState.READY] * 3
