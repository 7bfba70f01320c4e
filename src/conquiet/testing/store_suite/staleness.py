"""Fencing: every operation with a lease that is not the current one is refused and changes nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from conquiet.jobs import Job, JobState, JobStore, Nack, SettleResult, StaleLeaseError
from conquiet.testing.store_suite.source import QUEUE, Fixtures, Scene, proves, unchanged, with_token

__all__ = ["Staleness"]

TTL = 10.0


def _made_up(scene: Scene) -> Job:
    return with_token(scene.in_flight(), "3f2b8c1e-0000-4000-8000-000000000000")


def _no_token_at_all(scene: Scene) -> Job:
    return with_token(scene.in_flight(), "not a token'; --")


def _of_another_job(scene: Scene) -> Job:
    held, other = scene.in_flight(), scene.in_flight()
    assert other.lease is not None
    return with_token(held, other.lease.token)


def _never_claimed(scene: Scene) -> Job:
    return scene.store.enqueue(QUEUE, {})


def _expired(scene: Scene) -> Job:
    held = scene.in_flight(ttl=TTL)
    scene.advance(TTL)
    return held


def _reclaimed(scene: Scene) -> Job:
    held = _expired(scene)
    scene.claim(lease_ttl=100.0)
    return held


def _reclaimed_by_the_same_worker(scene: Scene) -> Job:
    scene.store.enqueue(QUEUE, {})
    held = scene.claim(worker="alice", lease_ttl=TTL)
    scene.advance(TTL)
    scene.claim(worker="alice", lease_ttl=100.0)
    return held


def _settled(operation: str) -> Callable[[Scene], Job]:
    def settled(scene: Scene) -> Job:
        held = scene.in_flight()
        getattr(scene.store, operation)(held)
        return held

    settled.__name__ = f"_after_{operation}"
    return settled


def _claimed_again_after_nack(scene: Scene) -> Job:
    held = scene.in_flight(ttl=100.0)
    scene.store.nack(held)
    scene.advance(1.0)
    scene.claim(lease_ttl=100.0)
    return held


def _claimed_again_after_release(scene: Scene) -> Job:
    held = scene.in_flight(ttl=100.0)
    scene.store.release(held)
    scene.claim(lease_ttl=100.0)
    return held


def _failed_and_retried(scene: Scene) -> Job:
    held = scene.in_flight()
    scene.store.nack(held, retryable=False)
    scene.store.retry(held.id)
    return held


def _removed(scene: Scene) -> Job:
    held = _failed_and_retried(scene)
    scene.store.discard(held.id)
    return held


def _removed_and_enqueued_again(scene: Scene) -> Job:
    held = _removed(scene)
    scene.store.enqueue(QUEUE, {"second": "life"}, id=held.id)
    scene.claim(lease_ttl=100.0)
    return held


STALE = [
    _made_up,
    _no_token_at_all,
    _of_another_job,
    _never_claimed,
    _expired,
    _reclaimed,
    _reclaimed_by_the_same_worker,
    *map(_settled, ("ack", "nack", "release")),
    _claimed_again_after_nack,
    _claimed_again_after_release,
    _failed_and_retried,
    _removed,
    _removed_and_enqueued_again,
]
OPERATIONS: dict[str, Callable[[JobStore, Job], object]] = {
    "ack": lambda store, job: store.ack(job),
    "nack": lambda store, job: store.nack(job, "too late"),
    "nack for good": lambda store, job: store.nack(job, "too late", retryable=False),
    "release": lambda store, job: store.release(job),
    "heartbeat": lambda store, job: store.heartbeat(job),
}
BATCHES: dict[str, Callable[[JobStore, list[Job]], list[SettleResult]]] = {
    "ack_many": lambda store, jobs: store.ack_many(jobs),
    "nack_many": lambda store, jobs: store.nack_many([Nack(job, "too late") for job in jobs]),
    "heartbeat_many": lambda store, jobs: store.heartbeat_many(jobs),
}


def _name(make: Callable[[Scene], Job]) -> str:
    return make.__name__.strip("_").replace("_", " ")


class Staleness(Fixtures):
    @proves("J-09", "J-02")
    @pytest.mark.parametrize("make", STALE, ids=_name)
    def test_a_stale_lease_is_refused(self, scene: Scene, make: Callable[[Scene], Job]) -> None:
        stale = make(scene)
        for name, operation in OPERATIONS.items():
            with unchanged(scene.store), pytest.raises(StaleLeaseError) as refused:
                operation(scene.store, stale)
            assert stale.id in str(refused.value)
            assert name.split()[0] in str(refused.value)

    @proves("J-09", "J-31")
    @pytest.mark.parametrize("make", STALE, ids=_name)
    def test_a_stale_lease_in_a_batch_is_refused_and_the_others_settled(
        self, scene: Scene, make: Callable[[Scene], Job]
    ) -> None:
        stale = make(scene)
        kept = scene.store.get(stale.id)
        for name, settle in BATCHES.items():
            good = [scene.in_flight(queue="other"), scene.in_flight(queue="other")]
            results = settle(scene.store, [good[0], stale, good[1]])
            assert [result.job_id for result in results] == [good[0].id, stale.id, good[1].id]
            assert [result.ok for result in results] == [True, False, True]
            assert [type(result.error) for result in results] == [type(None), StaleLeaseError, type(None)]
            assert stale.id in str(results[1].error)
            assert scene.store.get(stale.id) == kept
            held = [scene.state(job.id) is JobState.IN_FLIGHT for job in good]
            assert held == [name == "heartbeat_many"] * 2

    @proves("J-09")
    def test_a_batch_of_stale_leases_only(self, scene: Scene) -> None:
        stale = [_expired(scene), _made_up(scene)]
        for settle in BATCHES.values():
            with unchanged(scene.store):
                results = settle(scene.store, stale)
                assert [result.ok for result in results] == [False, False]

    @proves("J-09", "J-06")
    def test_the_second_settlement_of_a_lease_is_refused_whatever_it_is(self, scene: Scene) -> None:
        for first in ("ack", "nack", "release"):
            for second in OPERATIONS.values():
                held = scene.in_flight()
                getattr(scene.store, first)(held)
                with unchanged(scene.store), pytest.raises(StaleLeaseError):
                    second(scene.store, held)
                scene.store.prune(0.0)
                for job in scene.store.list():
                    scene.store.discard(job.id)

    @proves("J-09")
    def test_a_lease_is_good_until_it_expires_and_not_at_that_moment(self, scene: Scene) -> None:
        early, late = scene.in_flight(ttl=TTL), scene.in_flight(ttl=TTL)
        scene.advance(TTL - 0.5)
        scene.store.ack(early)
        scene.advance(0.5)
        with unchanged(scene.store), pytest.raises(StaleLeaseError):
            scene.store.ack(late)

    @proves("J-09", "J-10")
    def test_the_next_holder_is_not_disturbed_by_the_last(self, scene: Scene) -> None:
        old = scene.in_flight(ttl=TTL)
        scene.advance(TTL)
        new = scene.claim(lease_ttl=TTL)
        for operation in OPERATIONS.values():
            with pytest.raises(StaleLeaseError):
                operation(scene.store, old)
        new = scene.store.heartbeat(new)
        scene.store.ack(new)
        assert [attempt.outcome for attempt in scene.job(new.id).attempts] == ["lease expired", "succeeded"]
