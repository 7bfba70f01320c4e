"""The leased job stores and the worker against raw statements and peers on the same servers."""

from __future__ import annotations

import os
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count as numbers
from pathlib import Path
from statistics import median
from typing import Any
from uuid import uuid4

import psycopg

from bench import raw
from bench.harness import Bench, timed
from bench.peers import PGQUEUER_BATCH, drain
from conquiet import Conquiet
from conquiet.embedded import PostgresServer
from conquiet.jobs import JobStore, JobWorker, open_store

BENCH = Bench("jobs")
QUEUE = "bench"
PAYLOAD = {"report_id": "r-000001", "affiliate_id": "a-17", "claimed_views": 1200, "claimed_clicks": 34}

postgres_server = BENCH.needs(PostgresServer)  # fsync on
folder = BENCH.needs(lambda: tempfile.TemporaryDirectory(prefix="conquiet-bench-"))
fresh = numbers()


def new_database() -> str:
    return postgres_server().create_database(f"jobs_{next(fresh)}")


def new_file() -> str:
    return str(Path(folder()) / f"jobs_{next(fresh)}.db")


@contextmanager
def postgres_store(filled: int = 0) -> Iterator[JobStore]:
    with open_store(new_database()) as store:
        if filled:
            store.enqueue_many(QUEUE, [PAYLOAD] * filled)
        yield store


@contextmanager
def postgres_raw(filled: int = 0) -> Iterator[psycopg.Connection]:
    with psycopg.connect(new_database(), autocommit=True) as connection:
        raw.jobs_create(connection)
        if filled:
            raw.jobs_insert(connection, filled)
        yield connection


def enqueue_ours(count: int) -> float:
    batches = [[PAYLOAD] * size for size in raw.batches(count, 1_000)]
    with postgres_store() as store:
        return timed(lambda: [store.enqueue_many(QUEUE, batch) for batch in batches])


def enqueue_raw(count: int) -> float:
    """COPY of the same rows into the same table, ids included: each batch as one block of text."""
    with postgres_store() as store, psycopg.connect(store.dsn, autocommit=True) as connection:

        def copy() -> None:
            columns = "id, queue, payload, priority, state, max_retries, enqueued_at"
            for size in raw.batches(count, 1_000):
                now = time.strftime("%Y-%m-%d %H:%M:%S+00", time.gmtime())
                rest = f"\t{QUEUE}\t{raw.PAYLOAD}\t5\tReady\t3\t{now}\n"
                ids = os.urandom(16 * size).hex()
                block = "".join([ids[begin : begin + 32] + rest for begin in range(0, 32 * size, 32)])
                with (
                    connection.cursor() as cursor,
                    cursor.copy(f"COPY conquiet_jobs ({columns}) FROM STDIN") as rows,
                ):
                    rows.write(block)

        return timed(copy)


def enqueue_single(count: int) -> float:
    with postgres_store() as store:
        return timed(lambda: [store.enqueue(QUEUE, PAYLOAD) for _ in range(count)])


def claim_ack(store: JobStore, count: int, batch: int = 100) -> None:
    done = 0
    while done < count:
        jobs = store.claim(QUEUE, batch, 60.0)
        store.ack_many(jobs)
        done += len(jobs)


def claim_ack_ours(count: int) -> float:
    with postgres_store(filled=count) as store:
        return timed(lambda: claim_ack(store, count))


def claim_ack_raw(count: int) -> float:
    with postgres_raw(filled=count) as connection:
        return timed(lambda: raw.jobs_claim_ack(connection, count, batch=100))


def nothing(job: Any) -> None:
    pass


async def nothing_awaited(job: Any) -> None:
    pass


def worker_drains(store: JobStore, isolation: str) -> float:
    handler = nothing if isolation == "thread" else nothing_awaited
    worker = JobWorker(store, handler, queues=QUEUE, isolation=isolation)
    return timed(worker.run_until_idle)


def worker_ours(isolation: str, count: int) -> float:
    with postgres_store(filled=count) as store:
        return worker_drains(store, isolation)


def app_ours(count: int) -> float:
    """Tasks of an app, with an argument each."""
    with Conquiet(new_database()) as app:

        @app.task
        def count_up(number: int) -> None:
            pass

        count_up.enqueue_many([(number,) for number in range(count)])
        return timed(app.worker().run_until_idle)


def history_factor() -> float:
    """Time of claim(100) with 1,000,000 finished and 100,000 ready jobs, against 100,000 ready jobs alone."""
    return _claim_seconds(1_000_000) / _claim_seconds(0)


def _claim_seconds(finished: int) -> float:
    with postgres_store() as store, psycopg.connect(store.dsn, autocommit=True) as connection:
        for state, rows in (("Succeeded", finished), ("Ready", 100_000)):
            connection.execute(
                "INSERT INTO conquiet_jobs (id, queue, payload, priority, state, max_retries, enqueued_at, finished_at)"
                " SELECT gen_random_uuid()::text, %s, %s, 5, %s::text, 3, clock_timestamp(),"
                " CASE WHEN %s::text = 'Succeeded' THEN clock_timestamp() END FROM generate_series(1, %s)",
                (QUEUE, raw.PAYLOAD, state, state, rows),
            )
        connection.execute("VACUUM ANALYZE conquiet_jobs")
        return median(timed(lambda: store.claim(QUEUE, 100, 600.0)) for _ in range(60))


def sqlite_ours(count: int) -> float:
    batches = [[PAYLOAD] * size for size in raw.batches(count, 100)]

    def work() -> None:
        for batch in batches:
            store.enqueue_many(QUEUE, batch)
            store.ack_many(store.claim(QUEUE, 100, 60.0))

    with open_store(f"sqlite:///{new_file()}") as store:
        return timed(work)


def sqlite_raw(count: int) -> float:
    """The fewest statements for the same contract: unique ids, queues, priorities, a token per lease, an expiry."""
    connection = sqlite3.connect(new_file(), isolation_level=None)
    connection.executescript(
        "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;"
        "CREATE TABLE jobs (seq INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, queue TEXT NOT NULL,"
        " priority INTEGER NOT NULL, state TEXT NOT NULL, payload TEXT NOT NULL, token TEXT, expires REAL);"
        "CREATE INDEX ready ON jobs (queue, priority, seq) WHERE state = 'Ready';"
        "CREATE INDEX leased ON jobs (queue, expires) WHERE state = 'InFlight';"
    )

    def work() -> None:
        for size in raw.batches(count, 100):
            rows = [(str(uuid4()), QUEUE, raw.PAYLOAD) for _ in range(size)]
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany(
                "INSERT INTO jobs (id, queue, priority, state, payload) VALUES (?, ?, 5, 'Ready', ?)", rows
            )
            connection.execute("COMMIT")
            connection.execute("BEGIN IMMEDIATE")
            now = time.time()
            claimed = connection.execute(
                "UPDATE jobs SET state = 'InFlight', token = lower(hex(randomblob(16))), expires = ? WHERE seq IN"
                " (SELECT seq FROM jobs WHERE state = 'Ready' AND queue = ? ORDER BY priority, seq LIMIT 100)"
                " RETURNING id, token, payload",
                (now + 60, QUEUE),
            ).fetchall()
            connection.execute("COMMIT")
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany(
                "UPDATE jobs SET state = 'Succeeded' WHERE id = ? AND token = ? AND state = 'InFlight' AND expires > ?",
                [(job_id, token, now) for job_id, token, _ in claimed],
            )
            connection.execute("COMMIT")

    seconds = timed(work)
    connection.close()
    return seconds


def sqlite_worker(count: int) -> float:
    with open_store(f"sqlite:///{new_file()}") as store:
        store.enqueue_many(QUEUE, [PAYLOAD] * count)
        return worker_drains(store, "thread")


BENCH.compare(
    "postgres_enqueue_many",
    unit="jobs",
    count=20_000,
    ours=enqueue_ours,
    raw=enqueue_raw,
    pgqueuer=drain("pgqueuer", new_database, "bulk"),
)
BENCH.compare(
    "postgres_enqueue",
    unit="jobs",
    count=2_000,
    ours=enqueue_single,
    pgqueuer=drain("pgqueuer", new_database, "single"),
)
BENCH.compare(
    "postgres_app",
    unit="jobs",
    count=10_000,
    ours=app_ours,
    pgqueuer_batched=drain("pgqueuer", new_database, str(PGQUEUER_BATCH)),
)
BENCH.compare("postgres_claim_ack", unit="jobs", count=10_000, ours=claim_ack_ours, raw=claim_ack_raw)
for isolation in ("thread", "async"):
    BENCH.compare(
        f"postgres_worker_{isolation}",
        unit="jobs",
        count=10_000,
        ours=partial(worker_ours, isolation),
        raw=claim_ack_raw,
        pgqueuer=drain("pgqueuer", new_database),
        pgqueuer_batched=drain("pgqueuer", new_database, str(PGQUEUER_BATCH)),
        procrastinate=drain("procrastinate", new_database, share=0.05),
    )
BENCH.figure("postgres_claim_history_factor", unit="times the cost", measure=history_factor)
BENCH.compare("sqlite_batched", unit="jobs", count=5_000, ours=sqlite_ours, raw=sqlite_raw)
BENCH.compare(
    "sqlite_worker",
    unit="jobs",
    count=5_000,
    ours=sqlite_worker,
    huey=drain("huey", new_file, share=0.1),
    huey_fsync=drain("huey", new_file, "fsync", share=0.1),
)
