"""Batches: for each item the same result as the single call."""

from __future__ import annotations

import pytest

from conquiet.jobs import Job, JobState, JobStore, Nack, NewJob, StaleLeaseError
from conquiet.testing.store_suite.source import QUEUE, Fixtures, Scene, StoreSource, proves

__all__ = ["Batches"]


def _outline(job: Job) -> tuple[object, ...]:
    """The job without its token and its times."""
    attempts = [
        (a.number, a.worker, a.outcome, a.category, a.error_type, a.error_message) for a in job.attempts
    ]
    lease = job.lease and (job.lease.version, job.lease.ttl, job.lease.worker)
    return (job.payload, job.priority, job.state, job.retries, job.max_retries, job.error, lease, *attempts)


class Batches(Fixtures):
    @proves("J-31")
    def test_batches_do_what_single_calls_do(self, stores: StoreSource) -> None:
        store = stores.open(random=lambda: 0.5)
        for queue in ("single", "batch"):
            items = [NewJob({"n": n}, priority=n % 3, max_retries=n % 2) for n in range(12)]
            if queue == "single":
                for item in items:
                    store.enqueue(queue, item.payload, priority=item.priority, max_retries=item.max_retries)
                jobs = [job for _ in range(12) for job in store.claim(queue, worker="w")]
                for job in jobs[:4]:
                    store.ack(job)
                for job in jobs[4:8]:
                    store.nack(job, "no", retryable=job.priority > 0)
                for job in jobs[8:]:
                    store.heartbeat(job)
            else:
                store.enqueue_many(queue, items)
                jobs = store.claim(queue, 100, worker="w")
                store.ack_many(jobs[:4])
                store.nack_many([Nack(job, "no", retryable=job.priority > 0) for job in jobs[4:8]])
                store.heartbeat_many(jobs[8:])
            assert len(jobs) == 12
        single = [_outline(job) for job in store.list(queue="single")]
        assert single == [_outline(job) for job in store.list(queue="batch")]
        assert len({outline[2] for outline in single}) == 4  # every state was reached

    @proves("J-31")
    def test_a_claim_takes_no_more_than_its_limit(self, store: JobStore) -> None:
        store.enqueue_many(QUEUE, [{}] * 10)
        assert [len(store.claim(QUEUE, limit)) for limit in (1, 4, 100, 100)] == [1, 4, 5, 0]

    @proves("J-31", "J-09")
    def test_a_lease_twice_in_a_batch_is_settled_once(self, scene: Scene) -> None:
        held, other = scene.in_flight(), scene.in_flight()
        results = scene.store.ack_many([held, other, held])
        assert [(result.job_id, result.ok) for result in results] == [
            (held.id, True),
            (other.id, True),
            (held.id, False),
        ]
        assert isinstance(results[2].error, StaleLeaseError)
        assert [attempt.outcome for attempt in scene.job(held.id).attempts] == ["succeeded"]

    @proves("J-31", "J-09")
    def test_of_two_nacks_of_one_lease_the_first_counts(self, scene: Scene) -> None:
        held = scene.in_flight()
        results = scene.store.nack_many(
            [Nack(held, "first", retryable=False), Nack(held, "second"), Nack(held, "third")]
        )
        assert [result.ok for result in results] == [True, False, False]
        job = scene.job(held.id)
        assert (job.state, job.error, job.retries, len(job.attempts)) == (JobState.FAILED, "first", 0, 1)

    @proves("J-31")
    def test_empty_batches(self, store: JobStore) -> None:
        assert store.ack_many([]) == store.nack_many([]) == store.heartbeat_many([]) == []

    @proves("J-31")
    def test_batches_may_come_from_generators(self, store: JobStore) -> None:
        store.enqueue_many(QUEUE, [{}] * 6)
        jobs = store.claim(QUEUE, 6)
        results = store.heartbeat_many(job for job in jobs)
        results += store.ack_many(job for job in jobs[:3])
        results += store.nack_many(job for job in jobs[3:])
        assert all(result.ok for result in results)

    @proves("J-31")
    @pytest.mark.parametrize("size", [1, 1500])
    def test_a_large_batch_is_one_step_as_well(self, store: JobStore, size: int) -> None:
        ids = store.enqueue_many(QUEUE, [{"n": n} for n in range(size)])
        jobs = store.claim(QUEUE, size, lease_ttl=600.0)
        assert [job.id for job in jobs] == ids
        assert sum(result.ok for result in store.heartbeat_many(jobs)) == size
        results = store.ack_many(jobs)
        assert [(result.job_id, result.ok) for result in results] == [(job_id, True) for job_id in ids]
        assert store.stats()[QUEUE].succeeded == size
