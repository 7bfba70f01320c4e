"""Many workers on one store, in threads, on asyncio and in processes: one job never has two valid leases."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from conquiet.jobs import Job, JobState, JobStore, JobWorker, open_store
from conquiet.verify.history import History, check
from conquiet.verify.recording.jobs import RecordedBackend, record
from tests.acceptance.fleet import Fleet
from tests.acceptance.jobs.worker import RETRY, Work
from tests.integration.jobs.background import Running, until

TTL = 0.3


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    dsn = {"memory": "memory://", "sqlite": f"sqlite:///{tmp_path / 'jobs.db'}"}.get(request.param)
    with open_store(dsn or request.getfixturevalue("postgres_dsn"), retry=RETRY) as opened:
        yield opened


def handlers(backend: RecordedBackend) -> tuple[Any, Any]:
    """Some take longer than the lease, some fail."""

    def seconds(job: Job) -> float:
        return 1.5 * TTL if job.payload["n"] % 40 == 0 else random.uniform(0.0, 0.01)

    def end(job: Job) -> None:
        if job.payload["n"] % 7 == job.lease.version:
            backend.end_handling(job, "fail")
            raise ValueError("this time")
        backend.end_handling(job)

    def handle(job: Job) -> None:
        backend.begin_handling(job)
        time.sleep(seconds(job))
        end(job)

    async def handle_async(job: Job) -> None:
        backend.begin_handling(job)
        await asyncio.sleep(seconds(job))
        end(job)

    return handle, handle_async


@pytest.mark.clause("J-12", "J-04", "J-05", "J-10", "J-11")
def test_never_two_valid_leases_of_one_job(store: JobStore, tmp_path: Path) -> None:
    """One client takes jobs and never settles them, so that leases expire."""
    jobs = 240
    with History(tmp_path / "history") as history, ExitStack() as stack:
        backend = record(store, history)
        handle, handle_async = handlers(backend)
        ids = [f"job-{n}" for n in range(jobs)]
        with history.operation("enqueue", *ids):
            for n in range(jobs):
                store.enqueue("plain", {"n": n}, id=f"job-{n}")

        def take_and_forget() -> None:
            store.claim("plain", limit=2, lease_ttl=TTL / 2, worker="forgetful")

        take_and_forget()  # once before the workers, which might leave nothing
        workers = [
            JobWorker(store, handle, queues="plain", lease_ttl=TTL, concurrency=3, worker="a"),
            JobWorker(store, handle, queues="plain", lease_ttl=TTL, concurrency=3, worker="b"),
            JobWorker(store, handle_async, queues="plain", lease_ttl=TTL, isolation="async", worker="c"),
        ]
        running = [stack.enter_context(Running(worker)) for worker in workers]
        if store.capabilities.shared:
            fleet = stack.enter_context(Fleet(tmp_path))
            for isolation in ("thread", "async"):
                fleet.start(Work(store.dsn, isolation, history.path, isolation, lease_ttl=TTL))
        enough = threading.Event()

        def go_on() -> None:
            while not enough.wait(0.05):
                take_and_forget()

        forgetful = threading.Thread(target=go_on)
        forgetful.start()
        time.sleep(1.0)
        enough.set()
        forgetful.join()
        until(lambda: store.stats("plain")["plain"].succeeded == jobs)
        if store.capabilities.shared:
            fleet.end()
        counts = [one.stop() for one in running]
    verdict = check(tmp_path / "history", fenced=True)
    verdict.raise_if_broken()
    assert (verdict.counts.enqueued, verdict.counts.acked) == (jobs, jobs)
    assert sum(count.failed for count in counts) > 0
    done = [job for job in map(store.get, ids) if job is not None]
    assert {job.state for job in done} == {JobState.SUCCEEDED}
    assert sum(job.lease_expiries for job in done) > 0  # leases did expire
    for job in done:
        # Not without gaps: a lease that was given back before the job began is no attempt.
        versions = [attempt.number for attempt in job.attempts]
        assert versions == sorted(set(versions))
        assert [attempt.outcome for attempt in job.attempts].count("succeeded") == 1
