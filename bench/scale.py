"""The PostgreSQL job store with a long history. `--scale 0.01` makes it 100,000 finished jobs in place of 10 million."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Any
from urllib.request import urlopen

import psycopg

from bench.harness import Bench, timed
from conquiet.cli.verbs.metrics import MetricsServer
from conquiet.embedded import PostgresServer
from conquiet.flow import run
from conquiet.jobs import JobState, JobStore, open_store

BENCH = Bench("scale")
FINISHED = 10_000_000
FILL = """
INSERT INTO conquiet_jobs (id, queue, payload, priority, state, max_retries, enqueued_at, finished_at, correlation_id,
    lease_version, lease_worker, lease_started_at)
SELECT 'job-' || n, 'queue-' || n %% 20, format('{"task":"task-%%s","arguments":{"order":%%s}}', n %% 50, n), 5,
    CASE WHEN n %% 100 = 0 THEN 'Failed' ELSE 'Succeeded' END, 3, at, at, CASE WHEN n %% 10 = 0 THEN 'c-' || n / 100 END,
    1, 'worker', at
FROM generate_series(%(first)s::bigint, %(last)s) AS n, LATERAL (SELECT now() - interval '30 days' * (1 - n / %(all)s::float8)) AS t (at)
"""
COUNT = """
INSERT INTO conquiet_counts
SELECT queue, state, count(*) FROM conquiet_jobs WHERE state IN ('Succeeded', 'Failed') GROUP BY queue, state
"""


class History:
    """A store with so many finished jobs in 20 queues and of 50 tasks, and a hundred others."""

    def __init__(self) -> None:
        self._opened = ExitStack()
        self._stores: dict[int, JobStore] = {}

    def __enter__(self) -> History:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opened.close()

    def of(self, jobs: int) -> JobStore:
        if jobs not in self._stores:
            dsn = postgres_server().create_database(f"history_{jobs}")
            store = self._stores[jobs] = self._opened.enter_context(open_store(dsn))
            with psycopg.connect(dsn, autocommit=True) as connection:
                for first in range(1, jobs + 1, 500_000):
                    values = {"first": first, "last": min(jobs, first + 499_999), "all": jobs}
                    connection.execute(FILL, values)
                connection.execute(COUNT)
                connection.execute("VACUUM ANALYZE conquiet_jobs, conquiet_counts")
            store.enqueue_many("queue-1", [{}] * 100)
            store.claim("queue-1", 50, lease_ttl=3600.0)
        return self._stores[jobs]


postgres_server = BENCH.needs(PostgresServer)
history = BENCH.needs(History)


def milliseconds(work: Callable[[JobStore], object]) -> Callable[[int], float]:
    """The median of the times, after one that is not counted: connections and plans are then there."""

    def measure(jobs: int) -> float:
        store = history().of(jobs)
        work(store)
        times = sorted(timed(lambda: work(store)) for _ in range(15))
        return 1000 * times[len(times) // 2]

    return measure


def listed(**cut: Any) -> Callable[[JobStore], object]:
    def work(store: JobStore) -> None:
        page = store.list(**cut)
        assert page
        if page.next is not None:
            store.list(after=page.next, **cut)

    return work


def pruned(store: JobStore) -> None:
    """One step, of what the history begins with."""
    assert run(store.operations.backend.prune(86_400.0)) == 1_000


def scraped(jobs: int) -> float:
    """A request to the server of `conquiet metrics`, answered with what that reads from the store."""
    store = history().of(jobs)
    with MetricsServer("127.0.0.1", 0, lambda: repr(store.stats())) as server:

        def scrape(_: JobStore) -> None:
            with urlopen(server.url) as answer:
                assert b"queue-7" in answer.read()

        return milliseconds(scrape)(jobs)


OPERATIONS: dict[str, Callable[[JobStore], object]] = {
    "stats": lambda store: store.stats(),
    "list_oldest": listed(),
    "list_newest": listed(newest_first=True),
    "list_failed": listed(state=JobState.FAILED, newest_first=True),
    "list_queue": listed(queue="queue-7", newest_first=True),
    "list_task": listed(task="task-7", newest_first=True),
    "list_correlation": listed(correlation_id="c-7"),
    "prune_step": pruned,
}
for name, work in OPERATIONS.items():
    BENCH.figure(f"{name}_ms", unit="ms", count=FINISHED, measure=milliseconds(work))
BENCH.figure("scrape_ms", unit="ms", count=FINISHED, measure=scraped)
