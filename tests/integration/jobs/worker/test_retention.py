"""Retention: workers remove by themselves what finished long ago, and nothing else."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from conquiet.app import Conquiet
from conquiet.clock import SYSTEM_CLOCK
from conquiet.flow import Flow
from conquiet.jobs import JobConfigError, JobState, JobWorker, open_store
from conquiet.jobs.backends.memory import MemoryBackend
from tests.integration.jobs.background import Running, until

HOUR = 3600.0


def nothing(job: object) -> None: ...


async def nothing_async(job: object) -> None: ...


@pytest.mark.parametrize("isolation", ["thread", "async"])
def test_workers_remove_what_finished_before_the_retention(
    dsn: str, isolation: str, start: Callable[[JobWorker], Running]
) -> None:
    with open_store(dsn, retention=0.0) as store:
        store.enqueue_many("old", [{}] * 2_500)
        store.ack_many(store.claim("old", 2_400, lease_ttl=HOUR))
        worker = JobWorker(
            store, nothing if isolation == "thread" else nothing_async, queues="q", isolation=isolation
        )
        running = start(worker)
        until(lambda: store.stats("old")["old"].succeeded == 0)  # three steps
        assert store.stats("old")["old"].ready == 100
        running.stop()


def test_what_finished_later_stays(clean_postgres: str, start: Callable[[JobWorker], Running]) -> None:
    with Conquiet(clean_postgres, retention=HOUR) as app:
        app.task(nothing)
        app.store.enqueue_many("q", [{}] * 6)
        app.store.ack_many(app.store.claim("q", 4, lease_ttl=HOUR))
        recent, *old = app.store.list(state=JobState.SUCCEEDED)
        with psycopg.connect(clean_postgres, autocommit=True) as admin:
            admin.execute(
                "UPDATE conquiet_jobs SET finished_at = finished_at - interval '2 hours' WHERE id = ANY(%s)",
                ([job.id for job in old],),
            )
        running = start(app.worker())
        until(lambda: app.store.stats("q")["q"].succeeded == 1)
        assert app.store.list(state=JobState.SUCCEEDED) == [recent]
        assert app.store.stats("q")["q"].ready == 2
        running.stop()


def test_a_retention_that_is_none_is_refused() -> None:
    for wrong in (-1.0, "1", True):
        with pytest.raises(JobConfigError, match="retention"):
            open_store("memory://", retention=wrong)  # type: ignore[arg-type]


class Pruned(MemoryBackend):
    """Counts how often it is pruned."""

    def __init__(self) -> None:
        super().__init__(SYSTEM_CLOCK)
        self.times = 0

    def prune(self, older_than: float) -> Flow[int]:
        self.times += 1
        return super().prune(older_than)


def test_of_several_lanes_one_prunes(start: Callable[[JobWorker], Running]) -> None:
    backend = Pruned()
    with open_store("memory://", retention=HOUR) as store:
        store.operations.backend = backend
        for queue in "abcd":
            store.enqueue(queue, {})
        running = start(JobWorker(store, nothing, queues=dict.fromkeys("abcd", 2)))
        until(lambda: running.worker.counts.succeeded == 4 and backend.times)
        running.stop()
        assert backend.times == 1
