"""Waiting for work without polling."""

from __future__ import annotations

import threading
import time

from conquiet.jobs import JobState
from conquiet.testing.store_suite.source import QUEUE, Fixtures, Scene, StoreSource

__all__ = ["Wakeups"]

LONG = 20.0  # a wait that must end early
SOON = 5.0


class Wakeups(Fixtures):
    def test_new_work_ends_a_wait(self, stores: StoreSource) -> None:
        store, other = stores.open(), stores.open()
        with store.listen(QUEUE) as wait:
            assert store.claim(QUEUE) == []
            timer = threading.Timer(0.1, other.enqueue, (QUEUE, {}))
            timer.start()
            began = time.monotonic()
            while not (jobs := store.claim(QUEUE)) and time.monotonic() - began < SOON:
                wait(LONG)
            timer.join()
            assert time.monotonic() - began < SOON
        assert len(jobs) == 1

    def test_work_that_came_before_the_wait_is_not_missed(self, stores: StoreSource) -> None:
        store, other = stores.open(), stores.open()
        with store.listen(QUEUE) as wait:
            for _ in range(2):
                assert store.claim(QUEUE) == []
                other.enqueue(QUEUE, {})
                began = time.monotonic()
                wait(LONG)
                assert time.monotonic() - began < SOON
                assert len(store.claim(QUEUE)) == 1

    def test_a_job_that_a_person_retries_is_new_work(self, scene: Scene, stores: StoreSource) -> None:
        held = scene.reach(JobState.FAILED)
        other = stores.open()
        with scene.store.listen(QUEUE) as wait:
            assert scene.store.claim(QUEUE) == []
            other.retry(held.id)
            began = time.monotonic()
            wait(LONG)
            assert time.monotonic() - began < SOON
