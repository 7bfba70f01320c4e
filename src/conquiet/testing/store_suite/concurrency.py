"""Concurrency: several stores on the same data, each used by several threads."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pytest

from conquiet.jobs import DuplicateJobError, Job, JobState, JobStore, NewJob, StaleLeaseError
from conquiet.testing.store_suite.source import QUEUE, Fixtures, StoreSource, proves

__all__ = ["Concurrency"]

T = TypeVar("T")
THREADS = 8
STORES = 4
PATIENCE = 30.0


def together(stores: list[JobStore], work: Callable[[JobStore, int], T]) -> list[T]:
    """The results of `work(store, number)` on THREADS threads that start at the same moment."""
    ready = threading.Barrier(THREADS)

    def begin(number: int) -> T:
        ready.wait(PATIENCE)
        return work(stores[number % len(stores)], number)

    with ThreadPoolExecutor(THREADS) as threads:
        futures = [threads.submit(begin, number) for number in range(THREADS)]
        return [future.result(PATIENCE) for future in futures]


class Concurrency(Fixtures):
    @pytest.fixture
    def crowd(self, stores: StoreSource) -> list[JobStore]:
        return [stores.open() for _ in range(STORES)]

    @proves("J-04", "J-11", "J-12")
    @pytest.mark.parametrize("limit", [1, 7])
    def test_each_job_is_claimed_by_one(self, crowd: list[JobStore], limit: int) -> None:
        ids = crowd[0].enqueue_many("a", [{}] * 100) + crowd[0].enqueue_many("b", [{}] * 100)
        left = len(ids)
        lock = threading.Lock()

        def claim(store: JobStore, number: int) -> list[Job]:
            nonlocal left
            mine: list[Job] = []
            end = time.monotonic() + PATIENCE
            while (
                left > 0
            ):  # a claim may find nothing while other claims are in progress, and must be repeated
                assert time.monotonic() < end
                jobs = store.claim(["a", "b"], limit, lease_ttl=600.0, worker=f"{number}")
                mine += jobs
                with lock:
                    left -= len(jobs)
            return mine

        shares = together(crowd, claim)
        jobs = [job for share in shares for job in share]
        assert Counter(job.id for job in jobs) == dict.fromkeys(ids, 1)
        assert len({job.lease.token for job in jobs if job.lease}) == len(ids)
        assert {job.lease.version for job in jobs if job.lease} == {1}
        for number, share in enumerate(shares):
            assert {job.lease.worker for job in share if job.lease} <= {f"{number}"}

    @proves("J-12", "J-09")
    def test_a_lease_is_settled_by_one(self, crowd: list[JobStore]) -> None:
        crowd[0].enqueue_many(QUEUE, [NewJob({}, id=f"{n}") for n in range(20)])
        jobs = crowd[0].claim(QUEUE, 20, lease_ttl=600.0)

        def settle(store: JobStore, number: int) -> list[str]:
            won = []
            for job in random.Random(number).sample(jobs, len(jobs)):
                try:
                    getattr(store, ("ack", "nack", "release")[number % 3])(job)
                except StaleLeaseError:
                    continue
                won.append(job.id)
            return won

        won = [job_id for share in together(crowd, settle) for job_id in share]
        assert Counter(won) == {job.id: 1 for job in jobs}
        assert [len(job.attempts) for job in crowd[0].list()] == [1] * 20

    @proves("J-12", "J-10")
    def test_an_expired_lease_goes_to_one(self, stores: StoreSource, crowd: list[JobStore]) -> None:
        crowd[0].enqueue_many(QUEUE, [{}] * 20)
        old = crowd[0].claim(QUEUE, 20, lease_ttl=10.0)
        stores.advance(10.0)

        def take_over(store: JobStore, number: int) -> list[Job]:
            if number % 2:
                for job in old:
                    with pytest.raises(StaleLeaseError):
                        store.ack(job)
                return []
            return [job for _ in range(20) for job in store.claim(QUEUE, 2, lease_ttl=600.0)]

        taken = [job for share in together(crowd, take_over) for job in share]
        taken += crowd[0].claim(QUEUE, 20, lease_ttl=600.0)
        assert Counter(job.id for job in taken) == {job.id: 1 for job in old}
        assert {job.lease.version for job in taken if job.lease} == {2}

    @proves("J-03")
    def test_an_id_is_enqueued_by_one(self, crowd: list[JobStore]) -> None:
        def enqueue(store: JobStore, number: int) -> int:
            added = 0
            for n in range(20):
                try:
                    store.enqueue(QUEUE, {"by": number}, id=f"{n}")
                except DuplicateJobError:
                    continue
                added += 1
            return added

        assert sum(together(crowd, enqueue)) == 20
        assert len(crowd[0].list()) == 20

    @proves("J-03", "J-31")
    def test_batches_with_the_same_ids_share_them_out(self, crowd: list[JobStore]) -> None:
        def enqueue(store: JobStore, number: int) -> list[str]:
            order = random.Random(number).sample(range(50), 50)
            items = [NewJob({"by": number}, id=f"{n:02}") for n in sorted(order[:40])]
            return store.enqueue_many(QUEUE, items, on_duplicate="skip")

        shares = together(crowd, enqueue)
        stored = {job.id: job.payload["by"] for job in crowd[0].list()}
        assert stored == {job_id: number for number, share in enumerate(shares) for job_id in share}
        assert sum(map(len, shares)) == len(stored)

    @proves("J-12", "J-31")
    def test_work_is_done_once_whoever_does_it(self, crowd: list[JobStore]) -> None:
        """Enqueueing, claiming, heartbeats, failures, releases and acks concurrently, until nothing is left."""
        executions: Counter[str] = Counter()
        lock = threading.Lock()

        def work(store: JobStore, number: int) -> None:
            choice = random.Random(number)
            store.enqueue_many(QUEUE, [NewJob({}, id=f"{number}-{n}", max_retries=0) for n in range(15)])
            end = time.monotonic() + PATIENCE
            while store.stats()[QUEUE].ready:
                assert time.monotonic() < end
                for job in store.claim(QUEUE, 3, lease_ttl=600.0):
                    store.heartbeat(job)
                    if choice.random() < 0.2:
                        store.release(job)
                        continue
                    with lock:
                        executions[job.id] += 1
                    if choice.random() < 0.5:
                        store.ack(job)
                    else:
                        store.nack(job, "no")

        together(crowd, work)
        jobs = crowd[0].list(limit=1000)
        assert {job.state for job in jobs} == {JobState.SUCCEEDED, JobState.FAILED}
        assert executions == {job.id: 1 for job in jobs}
        for job in jobs:
            assert [attempt.number for attempt in job.attempts] == list(range(1, len(job.attempts) + 1))
