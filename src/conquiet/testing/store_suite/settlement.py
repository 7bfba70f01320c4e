"""Settling: the effects of ack, nack and release on a job, and how often it is retried."""

from __future__ import annotations

import random

import pytest

from conquiet.jobs import Job, JobState, JobStore, Nack, RetrySchedule
from conquiet.testing.store_suite.source import QUEUE, Advance, Fixtures, Scene, StoreSource, close_to, proves

__all__ = ["Settlements"]

LATER = 1_000_000.0


def delay(job: Job) -> float:
    """The delay after the last nack."""
    assert job.retry_at is not None
    return (job.retry_at - job.attempts[-1].ended_at).total_seconds()


class Settlements(Fixtures):
    @proves("J-06")
    def test_an_acked_job_has_succeeded_for_good(self, scene: Scene) -> None:
        held = scene.in_flight()
        scene.store.ack(held)
        job = scene.job(held.id)
        assert (job.state, job.lease, job.retries, job.retry_at) == (JobState.SUCCEEDED, None, 0, None)
        assert [attempt.outcome for attempt in job.attempts] == ["succeeded"]
        for _ in range(3):
            scene.advance(LATER)
            assert scene.store.claim(QUEUE, 10) == []
        assert scene.job(held.id) == job

    @proves("J-07")
    def test_a_nacked_job_is_ready_again_after_its_delay(self, stores: StoreSource) -> None:
        scene = Scene(stores.open(random=lambda: 0.5, retry=RetrySchedule(base_seconds=8.0)), stores.advance)
        held = scene.in_flight()
        scene.store.nack(held, "it broke")
        job = scene.job(held.id)
        assert (job.state, job.lease, job.retries, job.error) == (JobState.READY, None, 1, "it broke")
        assert close_to(job.retry_at, job.attempts[0].ended_at, 4.0)
        assert scene.store.stats()[QUEUE].delayed == 1
        scene.advance(3.5)
        assert scene.store.claim(QUEUE) == []
        scene.advance(0.5)
        again = scene.claim()
        assert (again.id, again.retries, again.error) == (held.id, 1, "it broke")

    @proves("J-08", "J-13")
    def test_three_retries_make_four_executions_at_most(self, scene: Scene) -> None:
        store = scene.store
        job_id = store.enqueue(QUEUE, {}).id
        executions = 0
        for _ in range(10):
            for job in store.claim(QUEUE, lease_ttl=60.0):
                executions += 1
                assert job.retries == executions - 1
                store.nack(job, f"failure {executions}")
            scene.advance(LATER)
        assert executions == 4
        job = scene.job(job_id)
        assert (job.state, job.retries, job.lease, job.retry_at) == (JobState.FAILED, 3, None, None)
        assert job.error == "failure 4"
        assert len(job.attempts) == 4

    @proves("J-08", "J-13")
    @pytest.mark.parametrize("max_retries", [0, 1, 5])
    def test_a_job_has_a_bound_of_its_own(self, scene: Scene, max_retries: int) -> None:
        store = scene.store
        store.enqueue(QUEUE, {}, max_retries=max_retries)
        executions = 0
        for _ in range(max_retries + 3):
            for job in store.claim(QUEUE):
                executions += 1
                store.nack(job)
            scene.advance(60.0)
        assert executions == max_retries + 1
        assert store.stats()[QUEUE].failed == 1

    @proves("J-08")
    def test_a_failure_that_is_not_retryable_fails_at_once(self, scene: Scene) -> None:
        held = scene.in_flight()
        scene.store.nack(held, "hopeless", retryable=False)
        job = scene.job(held.id)
        assert (job.state, job.retries, job.error, job.retry_at) == (JobState.FAILED, 0, "hopeless", None)
        scene.advance(LATER)
        assert scene.store.claim(QUEUE, 10) == []

    @proves("J-14")
    def test_a_delay_is_jittered_between_nothing_and_the_doubled_base(self, stores: StoreSource) -> None:
        factors = [0.25, 0.5, 0.75, 0.125, 0.5, 0.25, 0.5, 0.5, 0.0625]
        remaining = iter(factors)
        scene = Scene(stores.open(random=lambda: next(remaining)), stores.advance)
        scene.store.enqueue(QUEUE, {}, max_retries=len(factors))
        found = []
        for _ in factors:
            held = scene.claim(lease_ttl=60.0)
            scene.store.nack(held)
            found.append(delay(scene.job(held.id)))
            scene.advance(31.0)
        bounds = [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]
        expected = [factor * bound for factor, bound in zip(factors, bounds, strict=True)]
        assert found == pytest.approx(expected, abs=1e-5)

    @proves("J-14")
    def test_delays_are_uniform(self, stores: StoreSource) -> None:
        """The numbers of the random source, a seeded one here, are used unchanged."""
        seeded, same = random.Random(4), random.Random(4)
        store = stores.open(random=seeded.random, retry=RetrySchedule(base_seconds=10.0))
        store.enqueue_many(QUEUE, [{}] * 400)
        jobs = store.claim(QUEUE, 400, lease_ttl=600.0)
        assert all(result.ok for result in store.nack_many(jobs))
        delays = {job.id: delay(job) for job in store.list(limit=400)}
        assert [delays[job.id] for job in jobs] == pytest.approx(
            [same.random() * 10.0 for _ in jobs], abs=1e-5
        )
        assert 0.0 <= min(delays.values()) < 0.5
        assert 9.5 < max(delays.values()) <= 10.0
        assert 4.0 < sum(delays.values()) / 400 < 6.0

    @proves("J-14")
    def test_delays_differ_where_no_randomness_is_given(self, store: JobStore) -> None:
        store.enqueue_many(QUEUE, [{}] * 40)
        store.nack_many(store.claim(QUEUE, 40))
        delays = [delay(job) for job in store.list()]
        assert len(set(delays)) > 20
        assert all(0.0 <= wait <= 0.5 for wait in delays)

    @proves("J-14")
    @pytest.mark.parametrize(
        ("schedule", "bound"),
        [
            (RetrySchedule(base_seconds=0.0), 0.0),
            (RetrySchedule(base_seconds=7.0, max_seconds=3.0), 3.0),
            (RetrySchedule(base_seconds=7.0, max_seconds=0.0), 0.0),
            (RetrySchedule(base_seconds=1e300, max_seconds=1e300), 2 * 100 * 366 * 86_400.0),
        ],
        ids=["no base", "capped", "no maximum", "a century at most"],
    )
    def test_the_bound_is_the_smaller_of_base_and_maximum(
        self, stores: StoreSource, schedule: RetrySchedule, bound: float
    ) -> None:
        scene = Scene(stores.open(random=lambda: 0.5, retry=schedule), stores.advance)
        held = scene.in_flight()
        scene.store.nack(held)
        assert delay(scene.job(held.id)) == pytest.approx(bound / 2, abs=1e-5)

    @proves("J-07")
    def test_without_a_delay_it_is_claimable_at_once(self, stores: StoreSource) -> None:
        scene = Scene(stores.open(random=lambda: 0.0), stores.advance)
        held = scene.in_flight()
        scene.store.nack(held)
        assert scene.store.stats()[QUEUE].ready == 1
        assert scene.claim().retries == 1

    @proves("J-02", "J-13")
    def test_a_release_gives_the_job_back_at_once_and_consumes_no_retry(self, scene: Scene) -> None:
        job_id = scene.store.enqueue(QUEUE, {}, max_retries=1).id
        for _ in range(5):
            scene.store.release(scene.claim())
            job = scene.job(job_id)
            assert (job.state, job.retries, job.retry_at, job.lease) == (JobState.READY, 0, None, None)
        assert [attempt.outcome for attempt in job.attempts] == ["released"] * 5
        scene.store.nack(scene.claim())
        assert scene.job(job_id).state is JobState.READY  # this used its one retry

    def test_a_release_after_a_retry_keeps_the_retry_and_the_error(self, scene: Scene) -> None:
        held = scene.in_flight(ttl=60.0)
        scene.store.nack(held, "first")
        scene.advance(1.0)
        scene.store.release(scene.claim())
        job = scene.job(held.id)
        assert (job.retries, job.error, job.retry_at) == (1, "first", None)
        assert scene.claim().id == held.id

    def test_an_acked_job_keeps_what_went_wrong_before(self, scene: Scene) -> None:
        held = scene.in_flight(ttl=60.0)
        scene.store.nack(held, "first")
        scene.advance(1.0)
        scene.store.ack(scene.claim())
        job = scene.job(held.id)
        assert (job.state, job.retries, job.error, job.retry_at) == (JobState.SUCCEEDED, 1, "first", None)

    def test_a_nack_without_a_reason_has_none(self, scene: Scene) -> None:
        held = scene.in_flight(ttl=60.0)
        scene.store.nack(held, "first")
        scene.advance(1.0)
        scene.store.nack(scene.claim())
        assert scene.job(held.id).error is None

    @proves("J-07", "J-31")
    def test_the_errors_of_a_batch_stay_apart(self, store: JobStore, advance: Advance) -> None:
        ids = store.enqueue_many(QUEUE, [{}] * 4)
        first, second, third, fourth = store.claim(QUEUE, 4)
        results = store.nack_many(
            [
                Nack(first, ValueError("one")),
                Nack(second, "two", retryable=False, category="BUSINESS"),
                third,
                Nack(fourth, KeyError("four"), category="SYSTEM"),
            ]
        )
        assert [(result.job_id, result.ok, result.error) for result in results] == [
            (job_id, True, None) for job_id in ids
        ]
        jobs = store.list()
        assert [job.error for job in jobs] == ["one", "two", None, "'four'"]
        assert [job.state for job in jobs] == [
            JobState.READY,
            JobState.FAILED,
            JobState.READY,
            JobState.READY,
        ]
        assert [job.attempts[0].error_type for job in jobs] == ["ValueError", None, None, "KeyError"]
        assert [job.attempts[0].category for job in jobs] == [None, "BUSINESS", None, "SYSTEM"]
