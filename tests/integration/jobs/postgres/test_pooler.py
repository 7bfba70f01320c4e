"""Behind a pooler that gives each transaction another server (PgBouncer, pool_mode=transaction)."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from conquiet.jobs import Job, JobContext, JobWorker, open_store
from tests.integration.jobs.background import Running, until
from tests.integration.jobs.postgres.pooler import own_pooler, pgbouncer, real_pooler


@pytest.fixture
def pooled_dsn(postgres_dsn: str, tmp_path: Path) -> Iterator[str]:
    with psycopg.connect(postgres_dsn, autocommit=True) as admin:
        admin.execute("CREATE TABLE effects (n int PRIMARY KEY)")
    with real_pooler(postgres_dsn, tmp_path) if pgbouncer() else own_pooler(postgres_dsn) as dsn:
        yield dsn


@pytest.mark.parametrize("isolation", ["thread", "async"])
def test_jobs_behind_a_pooler(
    pooled_dsn: str, postgres_dsn: str, isolation: str, caplog: pytest.LogCaptureFixture
) -> None:
    def handle(job: Job, context: JobContext) -> None:
        context.connection.execute("INSERT INTO effects VALUES (%s)", (job.payload["n"],))

    async def handle_async(job: Job, context: JobContext) -> None:
        connection = await context.get_connection()
        await connection.execute("INSERT INTO effects VALUES (%s)", (job.payload["n"],))

    with open_store(pooled_dsn) as store, ThreadPoolExecutor(6) as pool:
        handler = handle if isolation == "thread" else handle_async
        worker = JobWorker(store, handler, queues="q", concurrency=4, isolation=isolation)
        with Running(worker) as running:
            list(pool.map(lambda n: store.enqueue("q", {"n": n}), range(60)))
            until(lambda: worker.counts.succeeded == 60, 60)
            until(lambda: any("polling" in record.message for record in caplog.records))
            store.enqueue("q", {"n": 60})  # found by a worker that cannot listen
            until(lambda: worker.counts.succeeded == 61, 60)
            running.stop()
        assert (worker.counts.failed, worker.counts.lost) == (0, 0)
    assert [record.message for record in caplog.records if "does not answer" in record.message] == []
    assert sum("polling" in record.message for record in caplog.records) == 1
    with psycopg.connect(postgres_dsn) as admin:
        assert admin.execute("SELECT count(*) FROM effects").fetchone() == (61,)


def test_nothing_is_left_set_on_the_servers_of_others(pooled_dsn: str) -> None:
    with open_store(pooled_dsn) as store:
        for n in range(20):
            store.enqueue("q", {"n": n})
    with psycopg.connect(pooled_dsn, autocommit=True, prepare_threshold=None) as other:
        for _ in range(6):
            assert other.execute("SHOW plan_cache_mode").fetchone() == ("auto",)


def test_our_own_pooler_switches_servers(postgres_dsn: str) -> None:
    """It stands for PgBouncer where that is missing."""
    with own_pooler(postgres_dsn) as dsn:
        with psycopg.connect(dsn, autocommit=True, prepare_threshold=None) as client:
            pids = {client.execute("SELECT pg_backend_pid()").fetchone() for _ in range(6)}
        assert len(pids) == 3
        with open_store(dsn) as store, ThreadPoolExecutor(6) as pool:
            list(pool.map(lambda n: store.enqueue("q", {"n": n}), range(60)))
            assert store.stats("q")["q"].ready == 60
