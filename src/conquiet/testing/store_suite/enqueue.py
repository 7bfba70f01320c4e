"""Enqueueing: a job is stored as given, and once."""

from __future__ import annotations

import pytest

from conquiet.jobs import (
    DuplicateJobError,
    Job,
    JobConfigError,
    JobState,
    JobStore,
    NewJob,
    RetrySchedule,
)
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

__all__ = ["Enqueue"]


class Enqueue(Fixtures):
    @proves("J-03")
    def test_a_new_job_is_ready_with_what_it_was_given(self, store: JobStore) -> None:
        given = store.enqueue(
            QUEUE, {"n": 1}, id="a", priority=-3, delay=7.5, max_retries=9, correlation_id="trace"
        )
        assert given == store.get("a")
        assert given == Job(
            id="a",
            queue=QUEUE,
            payload={"n": 1},
            priority=-3,
            state=JobState.READY,
            retries=0,
            max_retries=9,
            retry_at=given.retry_at,
            enqueued_at=given.enqueued_at,
            correlation_id="trace",
        )
        assert close_to(given.retry_at, given.enqueued_at, 7.5)

    @proves("J-03")
    def test_a_job_that_is_described_already_is_stored_as_described(self, store: JobStore) -> None:
        new = NewJob({"n": 1}, id="a", priority=-3, delay=7.5, max_retries=9, correlation_id="trace")
        given = store.enqueue_job(QUEUE, new)
        assert given == store.get("a")
        assert (given.payload, given.priority, given.max_retries) == (new.payload, -3, 9)
        assert given.correlation_id == "trace"
        assert close_to(given.retry_at, given.enqueued_at, 7.5)

    @proves("J-03", "J-13")
    def test_a_new_job_without_options(self, store: JobStore) -> None:
        one, two = store.enqueue(QUEUE, {}), store.enqueue(QUEUE, {})
        assert one == store.get(one.id)
        assert one.id != two.id
        assert (one.priority, one.max_retries, one.retry_at, one.correlation_id) == (5, 3, None, None)

    def test_the_time_of_enqueueing_is_the_stores(self, store: JobStore, advance: Advance) -> None:
        first = store.enqueue(QUEUE, {})
        advance(100.0)
        assert close_to(store.enqueue(QUEUE, {}).enqueued_at, first.enqueued_at, 100.0)

    @proves("J-03", "J-31")
    def test_many_at_once_are_as_one_by_one(self, store: JobStore) -> None:
        ids = store.enqueue_many(
            QUEUE,
            [
                {"n": 1},
                NewJob({"n": 2}, id="two", priority=1, delay=5.0, max_retries=0, correlation_id="c"),
                NewJob({"n": 3}, id="three"),
            ],
        )
        assert ids[1:] == ["two", "three"]
        one, two, three = store.list()
        assert [one.id, two.id, three.id] == ids
        assert [job.payload["n"] for job in (one, two, three)] == [1, 2, 3]
        assert (one.priority, one.max_retries, one.retry_at) == (5, 3, None)
        assert (two.priority, two.max_retries, two.correlation_id) == (1, 0, "c")
        assert close_to(two.retry_at, two.enqueued_at, 5.0)
        assert {job.state for job in (one, two, three)} == {JobState.READY}

    def test_many_of_none_is_none(self, store: JobStore) -> None:
        assert store.enqueue_many(QUEUE, []) == []
        assert store.list() == []

    def test_items_may_come_from_a_generator(self, store: JobStore) -> None:
        ids = store.enqueue_many(QUEUE, ({"n": n} for n in range(3)))
        assert [job.id for job in store.list()] == ids

    @proves("J-03")
    @pytest.mark.parametrize("state", JobState)
    @pytest.mark.parametrize("queue", [QUEUE, "another"])
    def test_an_id_that_exists_is_refused(self, scene: Scene, state: JobState, queue: str) -> None:
        taken = scene.reach(state).id
        with unchanged(scene.store), pytest.raises(DuplicateJobError, match=taken) as refused:
            scene.store.enqueue(queue, {"new": True}, id=taken)
        assert refused.value.ids == (taken,)

    @proves("J-03", "J-31")
    def test_one_taken_id_of_many_and_nothing_is_enqueued(self, store: JobStore) -> None:
        store.enqueue(QUEUE, {}, id="b")
        store.enqueue(QUEUE, {}, id="d")
        with unchanged(store), pytest.raises(DuplicateJobError) as refused:
            store.enqueue_many(QUEUE, [NewJob({"new": 1}, id=name) for name in "abcde"])
        assert refused.value.ids == ("b", "d")

    @proves("J-03", "J-31")
    def test_an_id_twice_in_one_call_and_nothing_is_enqueued(self, store: JobStore) -> None:
        with unchanged(store), pytest.raises(DuplicateJobError) as refused:
            store.enqueue_many(QUEUE, [NewJob({}, id=name) for name in "abca"])
        assert refused.value.ids == ("a",)

    @proves("J-03", "J-31")
    def test_skipping_adds_the_others_and_leaves_what_was_there(self, store: JobStore) -> None:
        store.enqueue(QUEUE, {"old": True}, id="b")
        before = store.get("b")
        items = [NewJob({"n": n}, id=name) for n, name in enumerate("abcac")]
        assert store.enqueue_many(QUEUE, items, on_duplicate="skip") == ["a", "c"]
        assert store.get("b") == before
        assert [(job.id, job.payload) for job in store.list()] == [
            ("b", {"old": True}),
            ("a", {"n": 0}),
            ("c", {"n": 2}),
        ]
        with unchanged(store):
            assert store.enqueue_many(QUEUE, items, on_duplicate="skip") == []

    def test_what_to_do_with_duplicates_is_one_of_two(self, store: JobStore) -> None:
        with unchanged(store), pytest.raises(JobConfigError, match="'replace'"):
            store.enqueue_many(QUEUE, [{}], on_duplicate="replace")

    @proves("J-13")
    def test_the_store_has_a_default_of_retries(self, stores: StoreSource) -> None:
        store = stores.open(retry=RetrySchedule(max_retries=7))
        assert store.enqueue(QUEUE, {}).max_retries == 7
        assert store.enqueue(QUEUE, {}, max_retries=0).max_retries == 0

    def test_lists_are_cut_by_queue_state_and_limit(self, store: JobStore) -> None:
        store.enqueue_many(QUEUE, [NewJob({}, id=name) for name in "abc"])
        store.enqueue("other", {}, id="x")
        (held,) = store.claim(QUEUE)

        def ids(**cut: object) -> str:
            return "".join(job.id for job in store.list(**cut))  # type: ignore[arg-type]

        assert ids() == "abcx"
        assert ids(newest_first=True) == "xcba"
        assert ids(queue=QUEUE) == "abc"
        assert ids(queue="other") == "x"
        assert ids(queue="none") == ""
        assert ids(state=JobState.READY) == "bcx"
        assert ids(state=JobState.IN_FLIGHT, queue=QUEUE) == held.id == "a"
        assert ids(limit=2) == "ab"
        assert ids(limit=2, newest_first=True) == "xc"

    def test_statistics_are_by_queue(self, store: JobStore, advance: Advance) -> None:
        store.enqueue_many("one", [{}, NewJob({}, delay=50.0)])
        store.enqueue("two", {})
        store.claim("two", lease_ttl=10.0)
        assert set(store.stats()) == {"one", "two"}
        assert store.stats("three") == {}
        one, two = store.stats("one")["one"], store.stats("two")["two"]
        assert (one.queue, one.ready, one.delayed, one.in_flight) == ("one", 1, 1, 0)
        assert (two.queue, two.ready, two.in_flight, two.expired) == ("two", 0, 1, 0)
        advance(50.0)
        one, two = store.stats()["one"], store.stats()["two"]
        assert (one.ready, one.delayed) == (2, 0)
        assert (two.in_flight, two.expired) == (0, 1)
