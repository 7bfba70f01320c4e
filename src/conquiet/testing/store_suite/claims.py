"""Claiming: which jobs a claim returns, in which order, and with which lease."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from conquiet.errors import JobConfigError
from conquiet.jobs import Job, JobState, JobStore, NewJob
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

__all__ = ["Claims"]


def ids(jobs: list[Job]) -> list[str]:
    return [job.id for job in jobs]


class Claims(Fixtures):
    @proves("J-04", "J-05")
    def test_a_claim_leases_the_job(self, store: JobStore) -> None:
        given = store.enqueue(QUEUE, {"n": 1}, id="a", correlation_id="c")
        (job,) = store.claim(QUEUE, lease_ttl=30.0, worker="alice")
        assert job.state is JobState.IN_FLIGHT
        assert job.lease is not None
        assert (job.lease.version, job.lease.ttl, job.lease.worker) == (1, 30.0, "alice")
        assert job.lease.token
        assert close_to(job.lease.expires_at, given.enqueued_at, 30.0)
        assert (job.payload, job.retries, job.attempts, job.error) == ({"n": 1}, 0, (), None)
        assert store.get("a") == job
        assert store.list() == [job]

    @proves("J-15")
    def test_a_lease_lasts_five_seconds_unless_told_otherwise(self, store: JobStore) -> None:
        given = store.enqueue(QUEUE, {})
        (job,) = store.claim(QUEUE)
        assert job.lease is not None
        assert job.lease.ttl == 5.0
        assert close_to(job.lease.expires_at, given.enqueued_at, 5.0)
        assert job.lease.worker  # a name for the process

    @proves("J-15")
    def test_each_claim_has_a_ttl_of_its_own(self, store: JobStore, advance: Advance) -> None:
        store.enqueue_many(QUEUE, [NewJob({}, id="short"), NewJob({}, id="long")])
        (short,) = store.claim(QUEUE, lease_ttl=2.0)
        (long,) = store.claim(QUEUE, lease_ttl=200.0)
        assert short.lease is not None
        assert long.lease is not None
        assert (short.lease.ttl, long.lease.ttl) == (2.0, 200.0)
        advance(2.0)
        assert ids(store.claim(QUEUE, 10)) == ["short"]

    @proves("J-05", "J-10")
    def test_every_claim_gives_a_new_token_and_the_next_version(self, scene: Scene) -> None:
        store = scene.store
        store.enqueue(QUEUE, {}, max_retries=10)
        leases = []
        for way in ("release", "nack", "expire", "release", "expire", "nack"):
            job = scene.claim(lease_ttl=100.0)
            leases.append(job.lease)
            if way == "expire":
                scene.advance(100.0)
            elif way == "release":
                store.release(job)
            else:
                store.nack(job)
                scene.advance(60.0)
        assert [lease.version for lease in leases if lease] == [1, 2, 3, 4, 5, 6]
        assert len({lease.token for lease in leases if lease}) == 6

    @proves("J-05", "J-31")
    def test_the_jobs_of_one_claim_have_tokens_of_their_own(self, store: JobStore) -> None:
        store.enqueue_many(QUEUE, [{}] * 50)
        jobs = store.claim(QUEUE, 50)
        assert len({job.lease.token for job in jobs if job.lease}) == 50

    def test_there_may_be_nothing_to_claim(self, store: JobStore) -> None:
        assert store.claim(QUEUE) == []
        store.enqueue(QUEUE, {})
        with unchanged(store):
            assert store.claim("elsewhere", 10) == []
            assert store.claim(["elsewhere", "nowhere"], 10) == []

    @proves("J-04")
    def test_a_delayed_job_is_claimable_from_retry_at_on(self, store: JobStore, advance: Advance) -> None:
        store.enqueue(QUEUE, {}, delay=10.0)
        advance(9.5)
        assert store.claim(QUEUE) == []
        advance(0.5)
        assert len(store.claim(QUEUE)) == 1

    @proves("J-04")
    def test_a_job_is_due_at_a_time_of_the_store(self, store: JobStore, advance: Advance) -> None:
        """Whatever the clock of the process says that enqueues it."""
        now = store.enqueue(QUEUE, {}, id="now").enqueued_at
        soon = now + timedelta(seconds=10)
        due = [store.enqueue_job(QUEUE, NewJob({}, id=f"{n}", at=soon)) for n in range(2)]
        past = store.enqueue_job(QUEUE, NewJob({}, id="past", at=now - timedelta(days=1)))
        store.enqueue_many(QUEUE, [NewJob({}, id="many", at=soon), NewJob({}, id="delayed", delay=20.0)])
        assert [job.retry_at for job in (*due, past)] == [soon, soon, None]
        assert [store.get(job.id) for job in (*due, past)] == [*due, past]
        assert ids(store.claim(QUEUE, 10, lease_ttl=600.0)) == ["now", "past"]
        advance(9.0)
        assert store.claim(QUEUE, 10) == []
        advance(1.0)
        assert ids(store.claim(QUEUE, 10, lease_ttl=600.0)) == ["0", "1", "many"]

    @pytest.mark.parametrize("at", [datetime(2030, 1, 1), "tomorrow", 1e9])
    def test_a_time_without_a_zone_is_refused(self, store: JobStore, at: Any) -> None:
        with pytest.raises(JobConfigError, match="at= must be a datetime with a time zone"):
            store.enqueue_job(QUEUE, NewJob({}, at=at))
        with pytest.raises(JobConfigError, match="exclude each other"):
            store.enqueue_job(QUEUE, NewJob({}, delay=1.0, at=at))

    @proves("J-11", "J-12")
    def test_a_leased_job_is_invisible_to_everybody_else(self, stores: StoreSource) -> None:
        store, other = stores.open(), stores.open()
        store.enqueue(QUEUE, {})
        assert len(store.claim(QUEUE, 10, lease_ttl=10.0)) == 1
        for _ in range(3):
            assert other.claim(QUEUE, 10) == store.claim(QUEUE, 10) == []
            stores.advance(3.0)
        stores.advance(1.0)
        assert len(other.claim(QUEUE, 10)) == 1
        assert store.claim(QUEUE, 10) == []

    @proves("J-18")
    def test_first_in_first_out(self, store: JobStore) -> None:
        expected = [store.enqueue(QUEUE, {}).id for _ in range(5)]
        expected += store.enqueue_many(QUEUE, [{}] * 300)
        expected += [store.enqueue(QUEUE, {}).id for _ in range(5)]
        claimed: list[str] = []
        for limit in (1, 2, 7, 100, 1000):
            claimed += ids(store.claim(QUEUE, limit))
        assert claimed == expected

    @proves("J-19", "J-18")
    def test_the_lower_priority_value_goes_first_then_the_older(self, store: JobStore) -> None:
        given = [5, 1, 9, 5, -7, 1, 0, 9, -7]
        store.enqueue_many(QUEUE, [NewJob({}, id=f"{place}", priority=p) for place, p in enumerate(given)])
        claimed = [job for limit in (1, 3, 2, 10) for job in store.claim(QUEUE, limit)]
        assert [job.priority for job in claimed] == sorted(given)
        assert ids(claimed) == ["4", "8", "6", "1", "5", "0", "3", "2", "7"]

    @proves("J-19")
    def test_a_better_job_that_comes_late_overtakes(self, store: JobStore) -> None:
        store.enqueue_many(QUEUE, [NewJob({}, id="a"), NewJob({}, id="b")])
        assert ids(store.claim(QUEUE)) == ["a"]
        store.enqueue(QUEUE, {}, id="c", priority=4)
        assert ids(store.claim(QUEUE, 2)) == ["c", "b"]

    @proves("J-18")
    def test_delayed_released_retried_and_expired_jobs_keep_their_place(
        self, store: JobStore, advance: Advance
    ) -> None:
        store.enqueue(QUEUE, {}, id="delayed", delay=10.0)
        store.enqueue_many(
            QUEUE, [NewJob({}, id=name) for name in ("nacked", "released", "expired", "failed")]
        )
        nacked, released, _, failed = store.claim(QUEUE, 10, lease_ttl=60.0)
        store.nack(nacked)
        store.release(released)
        store.nack(failed, retryable=False)
        store.retry("failed")
        store.enqueue(QUEUE, {}, id="new")
        advance(60.0)
        expected = ["delayed", "nacked", "released", "expired", "failed", "new"]
        assert ids(store.claim(QUEUE, 2) + store.claim(QUEUE) + store.claim(QUEUE, 10)) == expected

    @proves("J-18", "J-19")
    def test_more_delayed_jobs_come_due_than_a_claim_takes(self, store: JobStore, advance: Advance) -> None:
        late = [NewJob({}, id=f"late {n}", delay=5.0 - n % 5, priority=n % 2) for n in range(10)]
        store.enqueue_many(QUEUE, late)
        store.enqueue_many(QUEUE, [NewJob({}, id=f"new {n}", priority=n % 2) for n in range(4)])
        advance(5.0)
        claimed = [job for _ in range(5) for job in store.claim(QUEUE, 3)]
        order = [f"late {n}" for n in range(0, 10, 2)] + ["new 0", "new 2"]
        order += [f"late {n}" for n in range(1, 10, 2)] + ["new 1", "new 3"]
        assert ids(claimed) == order

    @proves("J-19", "J-04")
    def test_priority_goes_first_however_many_come_due_together(
        self, store: JobStore, advance: Advance
    ) -> None:
        late = [NewJob({}, id=f"{n}", delay=60.0 - n % 50, priority=n % 3) for n in range(600)]
        store.enqueue_many(QUEUE, late)
        advance(60.0)
        first = [job for _ in range(20) for job in store.claim(QUEUE, 7)]
        store.enqueue(QUEUE, {}, priority=-1)
        better = store.claim(QUEUE)
        rest = [job for _ in range(24) for job in store.claim(QUEUE, 20)]
        assert [job.priority for job in first + rest] == sorted(new.priority for new in late)
        assert {job.id for job in first + rest} == {new.id for new in late}
        assert [job.priority for job in better] == [-1]

    @proves("J-20")
    def test_queues_are_independent(self, store: JobStore) -> None:
        store.enqueue("a", {}, id="a1")
        store.enqueue("b", {}, id="b1", priority=0)
        store.enqueue("c", {}, id="c1", priority=0)
        assert ids(store.claim("a", 10)) == ["a1"]
        assert ids(store.claim("b", 10)) == ["b1"]
        assert store.get("c1") == store.list(queue="c")[0]
        assert store.stats()["c"].ready == 1

    @proves("J-20", "J-18", "J-19")
    def test_several_queues_are_served_in_one_order(self, store: JobStore) -> None:
        """Best priority first. With the same priority the queues take turns, in the order in which they are named."""
        for place, (queue, priority) in enumerate(
            [("a", 5), ("b", 5), ("c", 0), ("a", 1), ("b", 1), ("a", 5)]
        ):
            store.enqueue(queue, {}, id=f"{queue}{place}", priority=priority)
        assert ids(store.claim(["b", "a", "b"], 4)) == ["b4", "a3", "b1", "a0"]
        assert ids(store.claim(("a", "b", "c"), 10)) == ["c2", "a5"]

    @proves("J-20", "J-18")
    def test_a_long_queue_does_not_come_before_a_short_one(self, store: JobStore) -> None:
        store.enqueue_many("long", [NewJob({}, id=f"l{n}") for n in range(5)])
        store.enqueue_many("short", [NewJob({}, id=f"s{n}") for n in range(2)])
        assert ids(store.claim(["long", "short"], 7)) == ["l0", "s0", "l1", "s1", "l2", "l3", "l4"]

    @proves("J-20", "J-18")
    def test_expired_and_delayed_jobs_of_several_queues_too(self, store: JobStore, advance: Advance) -> None:
        store.enqueue("a", {}, id="1")
        store.enqueue("b", {}, id="2", delay=5.0)
        store.enqueue("b", {}, id="3")
        store.claim(["a", "b"], 10, lease_ttl=5.0)
        store.enqueue("a", {}, id="4")
        advance(5.0)
        assert ids(store.claim(["a", "b"], 3)) == ["1", "2", "4"]
        assert ids(store.claim(["a", "b"], 3)) == ["3"]

    @pytest.mark.parametrize("queues", [QUEUE, [QUEUE], (QUEUE, QUEUE), {QUEUE: 1}], ids=str)
    @proves("J-20")
    def test_queues_come_in_any_form(self, store: JobStore, queues: list[str]) -> None:
        store.enqueue_many(QUEUE, [{}] * 3)
        assert len(store.claim(queues, 3)) == 3
