"""Which jobs have begun under their leases: only these are charged if the leases expire."""

from __future__ import annotations

from conquiet.jobs import Job, JobState, JobStore, StaleLeaseError
from conquiet.testing.store_suite.source import QUEUE, Fixtures, Scene, StoreSource, proves, unchanged

__all__ = ["Begins"]

TTL = 9.0


def _begun(jobs: list[Job]) -> list[bool]:
    return [job.lease is not None and job.lease.begun for job in jobs]


class Begins(Fixtures):
    @proves("J-28")
    def test_a_job_that_has_not_begun_is_never_charged(self, stores: StoreSource) -> None:
        scene = Scene(stores.open(max_lease_expiries=2), stores.advance)
        job = scene.store.enqueue(QUEUE, {})
        for version in range(1, 6):
            (held,) = scene.store.claim(QUEUE, lease_ttl=TTL, worker="hoards", begun=0)
            assert held.lease is not None
            assert (held.lease.version, held.lease.begun, held.lease_expiries) == (version, False, 0)
            scene.advance(TTL)
        (held,) = scene.store.claim(QUEUE, lease_ttl=TTL)
        assert [(a.number, a.outcome, a.worker) for a in held.attempts] == [
            (version, "lease expired", "hoards") for version in range(1, 6)
        ]
        scene.store.ack(held)
        assert scene.job(job.id).lease_expiries == 0

    @proves("J-28")
    def test_a_claim_begins_as_many_as_it_says_in_its_order(self, scene: Scene) -> None:
        store = scene.store
        store.enqueue_many(QUEUE, [{"n": n} for n in range(5)])
        first = store.enqueue(QUEUE, {}, priority=0)
        jobs = store.claim(QUEUE, 6, lease_ttl=TTL, begun=2)
        assert jobs[0].id == first.id
        assert _begun(jobs) == [True, True, False, False, False, False]
        assert _begun([scene.job(job.id) for job in jobs]) == _begun(jobs)
        scene.advance(TTL)
        again = store.claim(QUEUE, 10, lease_ttl=TTL)
        assert [job.id for job in again] == [job.id for job in jobs]
        assert [job.lease_expiries for job in again] == [1, 1, 0, 0, 0, 0]
        assert _begun(again) == [True] * 6

    def test_a_claim_of_fewer_jobs_than_may_begin_begins_all(self, scene: Scene) -> None:
        scene.store.enqueue_many(QUEUE, [{}, {}])
        assert _begun(scene.store.claim(QUEUE, 10, lease_ttl=TTL, begun=8)) == [True, True]
        scene.advance(TTL)
        scene.store.enqueue(QUEUE, {})
        assert _begun(scene.store.claim(QUEUE, 10, lease_ttl=TTL, begun=8)) == [False, False, True]

    def test_delayed_and_expired_jobs_are_ranked_together(self, scene: Scene) -> None:
        store = scene.store
        store.enqueue(QUEUE, {"n": 0})
        assert _begun(store.claim(QUEUE, lease_ttl=TTL, begun=0)) == [False]
        store.enqueue(QUEUE, {"n": 1}, delay=TTL)
        store.enqueue(QUEUE, {"n": 2})
        scene.advance(TTL)
        jobs = store.claim(QUEUE, 10, lease_ttl=TTL, begun=2)
        assert [job.payload["n"] for job in jobs] == [0, 1, 2]
        assert _begun(jobs) == [True, True, False]

    @proves("J-28")
    def test_a_job_that_was_charged_does_not_begin_in_the_claim(self, scene: Scene) -> None:
        """It may be the one that kills workers: whoever claims it decides what runs beside it."""
        store = scene.store
        held = scene.in_flight(ttl=TTL)
        scene.advance(TTL)
        (held,) = store.claim(QUEUE, 5, lease_ttl=TTL, begun=5)
        assert (held.lease_expiries, _begun([held])) == (1, [False])
        store.release(held)
        (held,) = store.claim(QUEUE, 5, lease_ttl=TTL, begun=5)
        assert _begun([held]) == [False]
        assert [result.ok for result in store.begin_many([held])] == [True]
        scene.advance(TTL)
        assert store.claim(QUEUE)[0].lease_expiries == 2

    @proves("J-09", "J-28")
    def test_begin_is_charged_and_needs_the_current_lease(self, scene: Scene) -> None:
        store: JobStore = scene.store
        store.enqueue_many(QUEUE, [{}, {}, {}])
        jobs = store.claim(QUEUE, 3, lease_ttl=TTL, begun=0)
        store.ack(jobs[2])
        results = store.begin_many([jobs[0], jobs[2], scene.job(jobs[2].id)])
        assert [(result.job_id, result.ok) for result in results] == [
            (jobs[0].id, True),
            (jobs[2].id, False),
            (jobs[2].id, False),
        ]
        assert all(isinstance(result.error, StaleLeaseError) for result in results[1:])
        assert _begun([scene.job(job.id) for job in jobs[:2]]) == [True, False]
        scene.advance(TTL)
        with unchanged(store):
            assert [result.ok for result in store.begin_many(jobs)] == [False] * 3
        again = store.claim(QUEUE, 3, lease_ttl=TTL)
        assert [job.lease_expiries for job in again] == [1, 0]

    def test_jobs_end_and_others_begin_in_one_step(self, scene: Scene) -> None:
        store = scene.store
        store.enqueue_many(QUEUE, [{}, {}, {}, {}])
        jobs = store.claim(QUEUE, 4, lease_ttl=TTL, begun=2)
        store.release(jobs[1])
        acks, begins = store.ack_and_begin(jobs[:2], jobs[1:3])
        assert [result.ok for result in acks] == [True, False]
        assert [result.ok for result in begins] == [False, True]
        states = [scene.job(job.id).state for job in jobs]
        assert states == [JobState.SUCCEEDED, JobState.READY, JobState.IN_FLIGHT, JobState.IN_FLIGHT]
        assert _begun([scene.job(job.id) for job in jobs[2:]]) == [True, False]
