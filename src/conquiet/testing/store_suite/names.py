"""Names and numbers: they are stored unchanged or refused with a clear message, and never become SQL."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from conquiet.jobs import DuplicateJobError, Job, JobConfigError, JobState, JobStore, NewJob
from conquiet.testing.store_suite.source import QUEUE, Fixtures, Scene, proves, unchanged

__all__ = ["Names"]

NAMES = [
    'o\'brien "the" `one`',
    "'; DROP TABLE conquiet_jobs; --",
    "%s %(id)s {queue} $1 :id ?",
    "очередь 日本 🚀",
    "🚀" * 255,
    "x" * 255,
    "back\\slash\ttab\nline",
    " ",
    "NULL",
    "007",
    '["json"]',
    "*",
]
REFUSED: list[Any] = ["", "a\0b", "x" * 256, "\ud800", "y" * 1_000_000, 7, True, b"bytes", ["list"]]

# (argument, value): each is refused by the call
BAD_JOBS: list[tuple[str, Any]] = [
    *[("priority", value) for value in (True, 1.0, "5", None, 2**31, -(2**31) - 1)],
    *[("delay", value) for value in (-0.001, -1, math.nan, math.inf, True, "1", None, 1e12, 10**400)],
    *[("max_retries", value) for value in (-1, True, 1.0, "3", 2**31)],
]
BAD_CLAIMS: list[tuple[str, Any]] = [
    *[("limit", value) for value in (0, -1, True, 1.0, "1", None, 100_001)],
    *[("lease_ttl", value) for value in (0, 0.0, -1, math.nan, math.inf, True, "5", None, 1e12)],
    *[("queues", value) for value in ([], (), None, 7, [QUEUE, 7], [QUEUE, ""])],
]
BAD_LISTS: list[tuple[str, Any]] = [
    *[("limit", value) for value in (0, -1, True, 1.0, None)],
    *[("after", value) for value in (-1, True, 1.0, "1")],
    *[(name, value) for name in ("queue", "task", "correlation_id") for value in ("", 1)],
    ("state", "Nowhere"),
    ("state", 1),
]


@contextmanager
def refused(argument: str, value: object) -> Iterator[Callable[[], str]]:
    """The block must raise a JobConfigError that names the argument; yields a function that returns its message."""
    error: JobConfigError | None = None
    try:
        yield lambda: str(error)
    except JobConfigError as raised:
        error = raised
    assert error is not None, f"{argument}={value!a:.40} was not refused"
    assert argument in str(error)


class Names(Fixtures):
    @proves("J-20")
    @pytest.mark.parametrize("name", NAMES, ids=lambda name: ascii(name)[:30])
    def test_a_name_is_data(self, store: JobStore, name: str) -> None:
        given = store.enqueue(name, {}, id=name, correlation_id=name)
        assert given == store.get(name)
        assert (given.id, given.queue, given.correlation_id) == (name, name, name)
        with pytest.raises(DuplicateJobError) as taken:
            store.enqueue(name, {}, id=name)
        assert taken.value.ids == (name,)
        assert store.enqueue_many(name, [NewJob({}, id=name)], on_duplicate="skip") == []
        assert store.list(queue=name) == [given]
        assert set(store.stats()) == set(store.stats(name)) == {name}
        store.enqueue("another", {})
        (job,) = store.claim([name], 10, worker=name)
        assert job.lease is not None
        assert (job.id, job.lease.worker) == (name, name)
        store.nack(store.heartbeat(job), name, retryable=False)
        (attempt,) = store.retry(name).attempts
        assert (attempt.worker, attempt.error_message) == (name, name)
        store.discard(name)
        assert store.get(name) is None

    @pytest.mark.parametrize("part", ["queue", "id", "correlation_id"])
    def test_a_name_that_not_every_store_can_hold_is_refused(self, store: JobStore, part: str) -> None:
        with unchanged(store):
            for name in REFUSED:
                with refused(part, name) as message:
                    store.enqueue(**{"queue": QUEUE, "payload": {}, part: name})
                assert len(message()) < 200
                with refused(part, name):
                    if part == "queue":
                        store.enqueue_many(name, [{}])
                    else:
                        store.enqueue_many(QUEUE, [{}, NewJob({}, **{part: name})])

    def test_so_it_is_where_jobs_are_looked_up(self, scene: Scene) -> None:
        scene.reach(JobState.READY)
        store = scene.store
        with unchanged(store):
            for name in REFUSED:
                for look_up in (store.get, store.retry, store.discard, store.stats):
                    with refused("", name):
                        look_up(name)
                with refused("queue", name):
                    store.list(queue=name)
                with refused("queue", name):
                    store.claim([QUEUE, name])

    def test_so_is_a_workers(self, scene: Scene) -> None:
        scene.reach(JobState.READY)
        with unchanged(scene.store):
            for name in ("a\0b", "x" * 256, "\ud800", 7, b"bytes"):
                with refused("worker", name):
                    scene.store.claim(QUEUE, worker=name)  # type: ignore[arg-type]

    def test_bad_arguments_of_enqueue_are_refused(self, store: JobStore) -> None:
        with unchanged(store):
            for argument, value in BAD_JOBS:
                with refused(argument, value):
                    store.enqueue(QUEUE, {}, **{argument: value})
                with refused(argument, value):
                    store.enqueue_many(QUEUE, [{}, NewJob({}, **{argument: value})])

    def test_bad_arguments_of_claim_are_refused(self, scene: Scene) -> None:
        scene.reach(JobState.READY)
        with unchanged(scene.store):
            for argument, value in BAD_CLAIMS:
                with refused(argument.removesuffix("s"), value):
                    scene.store.claim(**{"queues": QUEUE, argument: value})

    def test_bad_arguments_of_list_are_refused(self, store: JobStore) -> None:
        for argument, value in BAD_LISTS:
            with refused(argument, value):
                store.list(**{argument: value})

    def test_bad_arguments_of_prune_are_refused(self, scene: Scene) -> None:
        scene.reach(JobState.SUCCEEDED)
        with unchanged(scene.store):
            for value in (-1, math.nan, math.inf, True, "1", None, 1e12):
                with refused("older_than", value):
                    scene.store.prune(value)  # type: ignore[arg-type]

    @pytest.mark.parametrize("operation", ["ack", "nack", "release", "heartbeat"])
    def test_only_jobs_are_settled(self, scene: Scene, operation: str) -> None:
        held = scene.in_flight()
        store = scene.store
        for other in (held.id, None, held.lease):
            with unchanged(store), pytest.raises(JobConfigError, match=f"{operation} takes a Job"):
                getattr(store, operation)(other)
        if operation != "release":
            with unchanged(store), pytest.raises(JobConfigError, match=f"{operation} takes a Job"):
                getattr(store, f"{operation}_many")([held, held.id])

    def test_the_widest_numbers_are_taken(self, scene: Scene) -> None:
        store = scene.store
        century = 100 * 366 * 86_400.0
        for place, (priority, retries) in enumerate([(-(2**31), 0), (2**31 - 1, 2**31 - 1)]):
            store.enqueue(QUEUE, {}, id=f"{place}", priority=priority, max_retries=retries)
        store.enqueue(QUEUE, {}, id="late", delay=century)
        jobs: list[Job] = store.claim(QUEUE, 100_000, lease_ttl=century)
        assert [(job.id, job.priority, job.max_retries) for job in jobs] == [
            ("0", -(2**31), 0),
            ("1", 2**31 - 1, 2**31 - 1),
        ]
        assert all(result.ok for result in store.heartbeat_many(jobs))
