"""Lists and statistics: every filter, page by page, in both directions; counts after every kind of transition."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest

from conquiet.jobs import Job, JobConfigError, JobState, JobStore, NewJob, QueueStats
from conquiet.testing.store_suite.source import QUEUE, Fixtures, Scene, StoreSource, proves

__all__ = ["Lists"]

TASKS = (None, "mail", 'a "quoted" \\ name', "größe")
STATES = (None, *JobState)
MOVES: dict[str, Callable[[JobStore, Job], object]] = {
    "ack": lambda store, held: store.ack(held),
    "fail": lambda store, held: store.nack(held, "no", retryable=False),
    "release": lambda store, held: store.release(held),
    "hold": lambda store, held: held,
}


class Lists(Fixtures):
    @proves("J-27")
    def test_every_filter_shows_what_it_names(self, store: JobStore) -> None:
        self._fill(store)
        everything = store.list(limit=1_000)
        assert everything.next is None
        assert {job.state for job in everything} == set(JobState)
        cuts: dict[str, tuple[Any, ...]] = {
            "state": STATES,
            "queue": (None, "one", "two"),
            "task": TASKS,
            "correlation_id": (None, "odd", "none"),
        }
        for cut in (dict(zip(cuts, values, strict=True)) for values in product(*cuts.values())):
            expected = [job.id for job in everything if all(_has(job, *item) for item in cut.items())]
            assert _walk(store, **cut) == expected, cut
            assert _walk(store, newest_first=True, **cut) == expected[::-1], cut

    @staticmethod
    def _fill(store: JobStore) -> None:
        moves = list(MOVES.values())
        for number in range(32):
            task = TASKS[number % 4]
            payload = {"n": number} if task is None else {"task": task, "arguments": {}}
            correlation_id = "odd" if number % 2 else None
            queue = "one" if number % 3 else "two"
            store.enqueue(queue, payload, correlation_id=correlation_id)
            (held,) = store.claim(queue, lease_ttl=600.0)
            moves[number // 4 % 4](store, held)
            if number // 4 % 4 == 2:  # it is delayed, so that the next claim does not return it
                store.discard(held.id)
                store.enqueue(queue, payload, correlation_id=correlation_id, delay=600.0)
        for task in TASKS[1:]:
            store.enqueue("one", {"task": task}, correlation_id="odd")

    def test_a_page_continues_where_the_last_one_ended_whatever_happens_between(self, scene: Scene) -> None:
        store = scene.store
        store.enqueue_many(QUEUE, [NewJob({}, id=name) for name in "abcdef"])
        first = store.list(limit=3)
        for job_id in "bcd":
            store.discard(job_id)
        store.enqueue(QUEUE, {}, id="g")
        assert [job.id for job in store.list(limit=3, after=first.next)] == ["e", "f", "g"]
        newest = store.list(limit=2, newest_first=True)
        store.discard("f")
        assert [job.id for job in store.list(newest_first=True, after=newest.next)] == ["e", "a"]

    @proves("J-27")
    @pytest.mark.parametrize("newest_first", [False, True])
    def test_jobs_are_listed_by_their_age(self, scene: Scene, newest_first: bool) -> None:
        store = scene.store
        for name in ("old", "middle", "new"):
            for state in JobState:
                scene.reach(state, id=f"{name} {state.value}")
            scene.advance(100.0)
        every = [f"{name} {state.value}" for name in ("old", "middle", "new") for state in JobState]
        assert _walk(store, older_than=50.0) == every
        assert _walk(store, older_than=250.0) == every[:4]
        assert _walk(store, newer_than=150.0) == every[8:]
        found = _walk(store, older_than=150.0, newer_than=250.0, newest_first=newest_first)
        assert found == (every[4:8][::-1] if newest_first else every[4:8])
        assert _walk(store, newer_than=250.0, state=JobState.FAILED) == ["middle Failed", "new Failed"]
        assert _walk(store, older_than=400.0) == []
        with pytest.raises(JobConfigError, match="older_than"):
            store.list(older_than=-1.0)

    def test_counts_follow_every_transition(self, scene: Scene) -> None:
        store = scene.store
        for _ in range(2):
            scene.reach(JobState.SUCCEEDED)
        failed = [scene.reach(JobState.FAILED) for _ in range(3)]
        assert store.stats(QUEUE)[QUEUE] == QueueStats(QUEUE, failed=3, succeeded=2)
        store.retry(failed[0].id)
        assert store.stats(QUEUE)[QUEUE] == QueueStats(QUEUE, ready=1, failed=2, succeeded=2)
        store.discard(failed[1].id)
        assert store.stats(QUEUE)[QUEUE] == QueueStats(QUEUE, ready=1, failed=1, succeeded=2)
        store.ack_and_begin([scene.claim()], [])
        assert store.stats(QUEUE)[QUEUE] == QueueStats(QUEUE, failed=1, succeeded=3)
        store.enqueue("other", {})
        assert store.prune(0.0) == 4
        assert store.stats() == {"other": QueueStats("other", ready=1)}

    def test_the_backlog_is_what_can_be_claimed_up_to_the_limit(self, scene: Scene) -> None:
        store = scene.store
        assert store.backlog(QUEUE, 10) == 0
        for state in (JobState.SUCCEEDED, JobState.FAILED, JobState.IN_FLIGHT, JobState.READY):
            scene.reach(state)
        store.enqueue_many("other", [{}] * 5)
        assert (store.backlog(QUEUE, 10), store.backlog("other", 10)) == (1, 5)
        store.enqueue(QUEUE, {}, delay=60.0)
        store.enqueue("lapsing", {})
        store.claim("lapsing", lease_ttl=30.0)
        assert (store.backlog(QUEUE, 10), store.backlog("lapsing", 10)) == (1, 0)
        scene.advance(30.0)
        assert store.backlog("lapsing", 10) == 1
        scene.advance(30.0)
        store.enqueue_many(QUEUE, [{}] * 3)
        assert store.backlog(QUEUE, 10) == len(store.claim(QUEUE, 10))
        store.enqueue_many(QUEUE, [{}] * 20)
        assert [store.backlog(QUEUE, limit) for limit in (1, 19, 20, 21)] == [1, 19, 20, 20]

    @pytest.mark.parametrize(
        ("queue", "limit"), [("", 1), (None, 1), (QUEUE, 0), (QUEUE, 1.5), (QUEUE, True)]
    )
    def test_a_backlog_of_nothing_is_refused(self, store: JobStore, queue: Any, limit: Any) -> None:
        with pytest.raises(JobConfigError, match="queue" if queue != QUEUE else "limit"):
            store.backlog(queue, limit)

    def test_a_job_that_loses_its_last_lease_is_counted(self, stores: StoreSource) -> None:
        store = stores.open(max_lease_expiries=1)
        store.enqueue_many(QUEUE, [{}, {}])
        store.claim(QUEUE, 2, lease_ttl=1.0)
        stores.advance(1.0)
        assert store.claim(QUEUE, 2) == []
        assert store.stats() == {QUEUE: QueueStats(QUEUE, failed=2)}

    @pytest.mark.parametrize("batch", [1, 50])
    def test_counts_are_exact_after_many_settles(self, store: JobStore, batch: int) -> None:
        """So many that a store that adds up its counts from time to time has done so."""
        for _ in range(4):
            store.enqueue_many(QUEUE, [{}] * 250)
            while jobs := store.claim(QUEUE, batch, lease_ttl=600.0):
                store.ack_many(jobs)
        assert store.stats() == {QUEUE: QueueStats(QUEUE, succeeded=1_000)}

    @proves("J-27")
    def test_pruning_takes_as_many_steps_as_it_needs(self, store: JobStore) -> None:
        store.enqueue_many(QUEUE, [{}] * 2_500)
        store.ack_many(store.claim(QUEUE, 2_300, lease_ttl=600.0))
        assert store.prune(0.0) == 2_300
        assert store.stats() == {QUEUE: QueueStats(QUEUE, ready=200)}


def _has(job: Job, name: str, value: Any) -> bool:
    found = job.payload.get("task") if name == "task" else getattr(job, name)
    return value is None or found == value


def _walk(store: JobStore, **cut: Any) -> list[str]:
    """All jobs, in pages of five."""
    page = store.list(limit=5, **cut)
    ids = [job.id for job in page]
    while page.next is not None:
        page = store.list(limit=5, after=page.next, **cut)
        ids += [job.id for job in page]
    return ids
