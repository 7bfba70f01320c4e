"""Delayed jobs that are due all together, against as many that are ready: drained by a worker."""

from __future__ import annotations

import tempfile
from functools import partial
from itertools import count as numbers

import psycopg

from bench.harness import Bench
from bench.jobs import QUEUE, worker_drains
from conquiet.clock import SYSTEM_CLOCK
from conquiet.embedded import PostgresServer
from conquiet.jobs import JobStore, NewJob, open_store
from conquiet.testing import ManualClock

BENCH = Bench("delayed")
SECONDS = 3600.0
BATCH = 5_000

server = BENCH.needs(PostgresServer)  # fsync on
folder = BENCH.needs(lambda: tempfile.TemporaryDirectory(prefix="conquiet-bench-"))
fresh = numbers()


def fill(store: JobStore, count: int, delay: float) -> None:
    new = NewJob({"n": 1}, delay=delay)
    for begin in range(0, count, BATCH):
        store.enqueue_many(QUEUE, [new] * min(BATCH, count - begin))


def on_postgres(delay: float, count: int) -> float:
    with open_store(server().create_database(f"delayed_{next(fresh)}")) as store:
        fill(store, count, delay)
        with psycopg.connect(store.dsn, autocommit=True) as admin:
            # Also for those that are ready: both tables are as large, and have as many dead rows.
            admin.execute("UPDATE conquiet_jobs SET retry_at = clock_timestamp()")
            admin.execute("VACUUM ANALYZE conquiet_jobs")
        return worker_drains(store, "thread")


def on_sqlite(delay: float, count: int) -> float:
    clock = ManualClock(SYSTEM_CLOCK.time())
    with open_store(f"sqlite:///{folder()}/{next(fresh)}.db", clock=clock) as store:
        fill(store, count, delay)
        clock.advance(delay)
        return worker_drains(store, "thread")


for name, count in (("postgres", 50_000), ("postgres_million", 1_000_000)):
    BENCH.compare(
        name, unit="jobs", count=count, ours=partial(on_postgres, SECONDS), ready=partial(on_postgres, 0.0)
    )
BENCH.compare(
    "sqlite", unit="jobs", count=50_000, ours=partial(on_sqlite, SECONDS), ready=partial(on_sqlite, 0.0)
)
