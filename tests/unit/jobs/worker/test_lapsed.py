"""What has lapsed by the worker's own clock is not begun, although nobody could tell the worker so."""

from __future__ import annotations

import random
from typing import Any

import pytest

from conquiet.clock import SYSTEM_CLOCK
from conquiet.flow import Flow, run
from conquiet.jobs import Job, JobState, JobStore, open_store
from conquiet.jobs.backends.memory import MemoryBackend
from conquiet.jobs.backends.protocol import Claim, JobRow
from conquiet.jobs.worker.execution import Executor
from conquiet.jobs.worker.plan import HandlerPlans
from conquiet.jobs.worker.run import WorkerRun, WorkerSettings
from conquiet.testing import ManualClock

TTL = 60.0


@pytest.fixture
def store() -> JobStore:
    return open_store("memory://")


def _run(store: JobStore, clock: Any, handle: Any, prefetch: int | None) -> WorkerRun:
    settings = WorkerSettings(("q",), "w", 1, TTL, prefetch, 1.0)
    executor = Executor(HandlerPlans(handle), store.operations, "thread")
    return WorkerRun(store.operations, executor, settings, clock, random.random)


@pytest.mark.clause("J-12")
@pytest.mark.parametrize("quick", [False, True])
def test_a_job_held_in_advance_is_not_begun_after_its_lease(
    store: JobStore, quick: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The process was paused for as long as the lease: the heartbeats have not noticed yet."""
    clock = ManualClock()
    began: list[int] = []

    def handle(job: Job) -> None:
        began.append(job.payload["n"])
        if job.payload["n"] == last:
            clock.advance(TTL)
        if job.payload["n"] > last and not worker.stopping.is_set():
            worker.stop()

    last = 100 if quick else 0
    store.enqueue_many("q", [{"n": n} for n in range(last + 4)])
    worker = _run(store, clock, handle, 200)
    first_claim = [*range(last + 1)]
    run(worker.run(True, False))
    assert began[: last + 1] == first_claim
    given_back = [
        job for job in store.list(limit=1000) if [a.outcome for a in job.attempts][:1] == ["released"]
    ]
    assert len(given_back) == 3
    assert "lapsed before it could begin" in caplog.text
    assert worker.counts.lost == 0


class SlowToAnswer(MemoryBackend):
    """The reply to the first claim arrives when the leases have lapsed."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(SYSTEM_CLOCK)
        self._workers_clock = clock
        self._slow = True

    def claim(self, claim: Claim) -> Flow[tuple[list[JobRow], bool]]:
        claimed = yield from super().claim(claim)
        if self._slow:
            self._slow = False
            self._workers_clock.advance(TTL)
        return claimed


@pytest.mark.clause("J-12")
def test_the_lease_counts_from_the_moment_the_claim_was_sent(store: JobStore) -> None:
    clock = ManualClock()
    store.operations.backend = SlowToAnswer(clock)
    job = store.enqueue("q", {})
    worker = _run(store, clock, lambda job: None, None)
    run(worker.run(True, False))
    done = store.get(job.id)
    assert done is not None
    assert [(a.number, a.outcome) for a in done.attempts] == [(1, "released"), (2, "succeeded")]
    assert done.state is JobState.SUCCEEDED
