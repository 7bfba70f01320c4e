"""How many jobs a worker claims at a time if prefetch is not set: few for slow handlers, many for quick ones."""

from __future__ import annotations

import time

import pytest

from conquiet.clock import SYSTEM_CLOCK
from conquiet.flow import Flow
from conquiet.jobs import Job, JobStore, JobWorker, open_store
from conquiet.jobs.backends.memory import MemoryBackend
from conquiet.jobs.backends.protocol import Claim, JobRow


class Counted(MemoryBackend):
    """Records how many jobs each claim asked for, and answers as slowly as a database."""

    def __init__(self) -> None:
        super().__init__(SYSTEM_CLOCK)
        self.asked: list[int] = []

    def claim(self, claim: Claim) -> Flow[tuple[list[JobRow], bool]]:
        self.asked.append(claim.limit)
        time.sleep(0.001)
        return (yield from super().claim(claim))


@pytest.fixture
def counted() -> Counted:
    return Counted()


@pytest.fixture
def store(counted: Counted) -> JobStore:
    store = open_store("memory://")
    store.operations.backend = counted
    return store


async def nothing(job: Job) -> None:
    pass


@pytest.mark.parametrize("isolation", ["thread", "async"])
def test_quick_handlers_are_given_ever_more(counted: Counted, store: JobStore, isolation: str) -> None:
    store.enqueue_many("q", [{}] * 6_000)
    handler = nothing if isolation == "async" else lambda job: None
    worker = JobWorker(store, handler, queues="q", isolation=isolation)
    assert worker.run_until_idle().succeeded == 6_000
    assert counted.asked[0] == 8  # how quick they are is not known yet: nothing ahead
    assert 100 < max(counted.asked) <= 1_008
    assert len(counted.asked) < 6_000 / 16 / 2


def test_slow_handlers_are_not(counted: Counted, store: JobStore) -> None:
    store.enqueue_many("q", [{}] * 60)
    JobWorker(store, lambda job: time.sleep(0.02), queues="q", concurrency=2).run_until_idle()
    # What they do in a fifth of a second, and one each: 22. Doubled, because they can look quick on a busy machine.
    assert max(counted.asked) <= 44


def test_who_says_how_many_gets_that(counted: Counted, store: JobStore) -> None:
    store.enqueue_many("q", [{}] * 100)
    JobWorker(store, lambda job: None, queues="q", concurrency=2, prefetch=3).run_until_idle()
    assert max(counted.asked) == 5
