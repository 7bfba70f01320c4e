"""A worker on a back end with a bug: it ends and says why; it never hangs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import pytest

from conquiet.clock import SYSTEM_CLOCK
from conquiet.errors import JobError
from conquiet.flow import Flow
from conquiet.jobs import Job, JobState, JobStore, JobWorker, open_store
from conquiet.jobs.backends.memory import MemoryBackend
from conquiet.jobs.backends.protocol import Claim, JobRow, Settlement


class Buggy(MemoryBackend):
    """A back end with one bug, which a test switches on."""

    bug = ""

    def claim(self, claim: Claim) -> Flow[tuple[list[JobRow], bool]]:
        self._strike("claim")
        return (yield from super().claim(claim))

    def settle(
        self, settlements: Sequence[Settlement], connection: Any, begins: Sequence[tuple[str, str]] = ()
    ) -> Flow[set[str]]:
        self._strike("settle")
        return (yield from super().settle(settlements, connection, begins))

    def heartbeat(self, leases: Sequence[tuple[str, str]]) -> Flow[dict[str, float]]:
        self._strike("heartbeat")
        return (yield from super().heartbeat(leases))

    def _strike(self, where: str) -> None:
        if self.bug == where:
            raise ZeroDivisionError(where)


@pytest.fixture
def store() -> JobStore:
    store = open_store("memory://")
    store.operations.backend = Buggy(SYSTEM_CLOCK)
    return store


def linger(job: Job) -> None:
    time.sleep(0.3)


async def linger_async(job: Job) -> None:
    await asyncio.sleep(0.3)


@pytest.mark.parametrize("isolation", ["thread", "async"])
@pytest.mark.parametrize("bug", ["claim", "settle", "heartbeat"])
def test_the_worker_ends_with_it(
    store: JobStore, bug: str, isolation: str, caplog: pytest.LogCaptureFixture
) -> None:
    store.enqueue_many("q", [{}] * 3)
    handler = linger if isolation == "thread" else linger_async
    worker = JobWorker(
        store, handler, queues="q", isolation=isolation, lease_ttl=0.6, concurrency=1, prefetch=1
    )
    vars(store.operations.backend)["bug"] = bug
    with pytest.raises(ZeroDivisionError, match=bug):
        worker.run()
    if bug != "claim":  # claims run in the main flow
        assert "the worker ends: ZeroDivisionError" in caplog.text
    if bug == "heartbeat":  # running jobs were finished, the others released
        assert sorted(job.state for job in store.list()) == [
            JobState.READY,
            JobState.READY,
            JobState.SUCCEEDED,
        ]


def test_a_store_that_was_closed_is_not_waited_for(tmp_path: Any) -> None:
    store = open_store(f"sqlite:///{tmp_path / 'jobs.db'}")
    worker = JobWorker(store, print, queues="q")
    store.close()
    with pytest.raises(JobError, match="closed"):
        worker.run()
