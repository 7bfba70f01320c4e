"""Leases: how they are extended, how they expire, and how often they may expire."""

from __future__ import annotations

import pytest

from conquiet.jobs import JobState, JobStore
from conquiet.testing.store_suite.source import (
    QUEUE,
    Advance,
    Fixtures,
    Scene,
    StoreSource,
    close_to,
    proves,
    unchanged,
)

__all__ = ["Leases"]

TTL = 9.0


class Leases(Fixtures):
    @proves("J-10", "J-12")
    def test_an_expired_lease_makes_the_job_claimable_for_the_next(self, scene: Scene) -> None:
        old = scene.in_flight(ttl=TTL)
        scene.advance(TTL)
        new = scene.claim(worker="next", lease_ttl=TTL)
        assert new.id == old.id
        assert new.lease is not None
        assert old.lease is not None
        assert new.lease.token != old.lease.token
        assert new.lease.version == old.lease.version + 1
        assert new.lease.worker == "next"
        assert close_to(new.lease.expires_at, old.lease.expires_at, TTL)
        assert (new.state, new.retries, new.lease_expiries) == (JobState.IN_FLIGHT, 0, 1)
        assert scene.store.claim(QUEUE) == []

    @proves("J-10")
    def test_until_somebody_claims_it_an_expired_job_stays_in_flight(self, scene: Scene) -> None:
        held = scene.in_flight(ttl=TTL)
        scene.advance(1000.0)
        assert scene.job(held.id) == held
        assert scene.store.list(state=JobState.IN_FLIGHT) == [held]
        stats = scene.store.stats()[QUEUE]
        assert (stats.in_flight, stats.expired, stats.ready) == (0, 1, 0)

    @proves("J-10", "J-13")
    def test_an_expiry_consumes_no_retry(self, scene: Scene) -> None:
        job_id = scene.store.enqueue(QUEUE, {}, max_retries=1).id
        for _ in range(5):
            scene.claim(lease_ttl=TTL)
            scene.advance(TTL)
        held = scene.claim()
        assert (held.retries, held.lease_expiries) == (0, 5)
        scene.store.nack(held)
        assert scene.job(job_id).state is JobState.READY
        scene.advance(1.0)
        scene.store.nack(scene.claim())
        assert scene.job(job_id).state is JobState.FAILED

    @proves("J-16")
    def test_a_heartbeat_extends_to_now_and_the_ttl_of_the_lease(self, scene: Scene) -> None:
        held = scene.in_flight(ttl=TTL)
        assert held.lease is not None
        first_expiry = held.lease.expires_at
        scene.advance(3.0)
        beaten = scene.store.heartbeat(held)
        assert beaten.lease is not None
        assert close_to(beaten.lease.expires_at, first_expiry, 3.0)
        assert (beaten.lease.token, beaten.lease.version) == (held.lease.token, held.lease.version)
        assert beaten == scene.job(held.id)
        scene.advance(TTL - 0.5)  # 2.5 seconds past the first expiry
        assert scene.store.claim(QUEUE) == []
        assert scene.store.stats()[QUEUE].in_flight == 1
        scene.advance(0.5)
        assert scene.claim().id == held.id

    @proves("J-16")
    def test_heartbeats_do_not_add_up(self, scene: Scene) -> None:
        held = scene.in_flight(ttl=TTL)
        for _ in range(5):
            beaten = scene.store.heartbeat(held)
        assert held.lease is not None
        assert beaten.lease is not None
        assert close_to(beaten.lease.expires_at, held.lease.expires_at, 0.0)
        scene.advance(TTL)
        assert scene.claim().id == held.id

    @proves("J-16", "J-12")
    def test_heartbeats_hold_a_job_for_as_long_as_they_come(self, scene: Scene) -> None:
        held = scene.in_flight(ttl=TTL)
        for _ in range(30):
            scene.advance(TTL / 3)
            scene.store.heartbeat(held)  # the job as claimed is enough: only its token counts
            assert scene.store.claim(QUEUE) == []
        scene.store.ack(held)
        assert scene.job(held.id).lease_expiries == 0

    @proves("J-16", "J-31")
    def test_many_heartbeats_at_once(self, store: JobStore, advance: Advance) -> None:
        store.enqueue_many(QUEUE, [{}] * 3)
        short, long, left = store.claim(QUEUE, lease_ttl=TTL) + store.claim(QUEUE, 2, lease_ttl=2 * TTL)
        advance(5.0)
        results = store.heartbeat_many([long, short, long])
        assert [(result.job_id, result.ok) for result in results] == [
            (long.id, True),
            (short.id, True),
            (long.id, True),
        ]
        for job, ttl in ((short, TTL), (long, 2 * TTL)):
            now = store.get(job.id)
            assert now is not None
            assert now.lease is not None
            assert close_to(now.lease.expires_at, job.enqueued_at, 5.0 + ttl)
        assert store.get(left.id) == left
        assert store.heartbeat_many([]) == []

    @proves("J-16")
    def test_a_heartbeat_on_an_expired_lease_revives_nothing(self, scene: Scene) -> None:
        held = scene.in_flight(ttl=TTL)
        scene.advance(TTL)
        with unchanged(scene.store):
            (result,) = scene.store.heartbeat_many([held])
        assert not result.ok
        assert scene.claim().id == held.id

    @proves("J-28")
    @pytest.mark.parametrize("limit", [1, 3])
    def test_a_job_whose_lease_expires_too_often_fails(self, stores: StoreSource, limit: int) -> None:
        scene = Scene(stores.open(max_lease_expiries=limit), stores.advance)
        job_id = scene.store.enqueue(QUEUE, {}).id
        deliveries = 0
        for _ in range(limit + 2):
            deliveries += len(scene.store.claim(QUEUE, lease_ttl=TTL, worker="dying"))
            scene.advance(TTL)
        assert deliveries == limit
        job = scene.job(job_id)
        assert (job.state, job.lease, job.retry_at) == (JobState.FAILED, None, None)
        assert (job.lease_expiries, job.retries) == (limit, 0)
        assert job.error == f"its lease expired {limit} times: its worker died or lost the store each time"
        assert [(a.outcome, a.worker) for a in job.attempts] == [("lease expired", "dying")] * limit
        assert [a.error_type for a in job.attempts] == [None] * (limit - 1) + ["LeaseExpired"]
        assert [a.error_message for a in job.attempts] == [None] * (limit - 1) + [job.error]
        scene.advance(1_000_000.0)
        assert scene.store.claim(QUEUE) == []

    @proves("J-28")
    def test_the_twentieth_expiry_is_the_last(self, scene: Scene) -> None:
        job_id = scene.store.enqueue(QUEUE, {}).id
        for version in range(1, 21):
            held = scene.claim(lease_ttl=TTL)
            assert held.lease is not None
            assert (held.lease.version, held.lease_expiries) == (version, version - 1)
            scene.advance(TTL)
        assert scene.state(job_id) is JobState.IN_FLIGHT
        assert scene.store.claim(QUEUE) == []
        assert scene.state(job_id) is JobState.FAILED

    @proves("J-28", "J-31")
    @pytest.mark.parametrize("claim_limit", [1, 2, 10])
    def test_a_claim_that_fails_jobs_delivers_the_next_ones(
        self, stores: StoreSource, claim_limit: int
    ) -> None:
        store = stores.open(max_lease_expiries=1)
        store.enqueue_many(QUEUE, [{"poison": n} for n in range(4)])
        assert len(store.claim(QUEUE, 4, lease_ttl=TTL)) == 4
        good = store.enqueue_many(QUEUE, [{}] * 3)
        stores.advance(TTL)
        claimed = store.claim(QUEUE, claim_limit)
        assert [job.id for job in claimed] == good[:claim_limit]
        claimed += store.claim(QUEUE, 10)
        assert [job.id for job in claimed] == good
        assert store.stats()[QUEUE].failed == 4

    @proves("J-28", "J-27")
    def test_a_person_gives_such_a_job_all_its_chances_back(self, stores: StoreSource) -> None:
        scene = Scene(stores.open(max_lease_expiries=2), stores.advance)
        job_id = scene.store.enqueue(QUEUE, {}).id
        for _ in range(2):
            for _ in range(2):
                assert scene.claim(lease_ttl=TTL).id == job_id
                scene.advance(TTL)
            assert scene.store.claim(QUEUE) == []
            job = scene.store.retry(job_id)
            assert (job.state, job.lease_expiries) == (JobState.READY, 0)
        assert [attempt.number for attempt in job.attempts] == [1, 2, 3, 4]
