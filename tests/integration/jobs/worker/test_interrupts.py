"""Handlers that raise a BaseException: nothing is lost, nothing hangs, and a request to end is followed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from conquiet.jobs import Job, JobContext, JobState, JobStore, JobWorker, NewJob
from tests.integration.jobs.background import Running, until

Start = Callable[[JobWorker], Running]


class Stop(BaseException):
    """Not an Exception, like SystemExit."""


@pytest.mark.parametrize("isolation", ["thread", "async"])
@pytest.mark.parametrize("error", [SystemExit, Stop, KeyboardInterrupt])
def test_whatever_a_handler_raises_only_its_job_fails(
    store: JobStore, error: type[BaseException], isolation: str
) -> None:
    if (error, isolation) == (KeyboardInterrupt, "async"):
        return  # may be Ctrl-C: see below

    def handle(job: Job) -> None:
        if job.payload["ends"]:
            raise error("enough")

    async def handle_async(job: Job) -> None:
        handle(job)

    bad = store.enqueue_many("q", [NewJob({"ends": True}, max_retries=1)] * 20)
    store.enqueue_many("q", [{"ends": False}] * 20)
    handler = handle if isolation == "thread" else handle_async
    worker = JobWorker(store, handler, queues="q", isolation=isolation, concurrency=2)
    counts = worker.run_until_idle(wait_for_delayed=True)
    assert (counts.succeeded, counts.failed) == (20, 40)
    for job in map(store.get, bad):
        assert (job.state, job.error) == (JobState.FAILED, "enough")
        assert {(a.error_type, a.category) for a in job.attempts} == {(error.__name__, "SYSTEM")}


def test_a_handler_that_raises_generator_exit(memory: JobStore) -> None:
    def handle(job: Job) -> None:
        raise GeneratorExit

    job = memory.enqueue("q", {}, max_retries=0)
    assert JobWorker(memory, handle, queues="q").run_until_idle().failed == 1
    assert memory.get(job.id).error.endswith("handle raised GeneratorExit")


def test_an_interrupt_in_the_event_loop_ends_the_worker_in_order(store: JobStore, start: Start) -> None:
    """Running jobs are finished, jobs not yet begun are given back, and run() raises the error."""
    both = threading.Barrier(2)

    async def handle(job: Job) -> None:
        await asyncio.to_thread(both.wait, 10)
        if job.payload["ends"]:
            raise KeyboardInterrupt("enough")
        await asyncio.to_thread(until, lambda: store.get(ending.id).lease is None)

    ending = store.enqueue("q", {"ends": True})
    other = store.enqueue("q", {"ends": False})
    unstarted = store.enqueue_many("q", [{"ends": True}] * 3)
    running = start(JobWorker(store, handle, queues="q", isolation="async", concurrency=2, prefetch=3))
    with pytest.raises(KeyboardInterrupt, match="enough"):
        running.end()
    for job in map(store.get, [ending.id, *unstarted]):
        assert (job.state, job.retries, {a.outcome for a in job.attempts}) == (
            JobState.READY,
            0,
            {"released"},
        )
    assert store.get(other.id).state is JobState.SUCCEEDED


def leave(job: Job) -> None:
    raise SystemExit(3)


def test_in_a_process_it_is_only_a_failure(memory: JobStore) -> None:
    job = memory.enqueue("q", {}, max_retries=1)
    worker = JobWorker(memory, leave, queues="q", isolation="process")
    assert worker.run_until_idle(wait_for_delayed=True).failed == 2
    ended = memory.get(job.id)
    assert (ended.error, ended.attempts[-1].error_type) == ("3", "SystemExit")


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
