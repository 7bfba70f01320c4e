"""A database whose default is serializable: the store states the level of its own statements."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import psycopg
import pytest

from conquiet.jobs import Job, JobContext, JobWorker, RetrySchedule, open_store
from tests.integration.jobs.background import Running, until

NO_RETRY = RetrySchedule(max_retries=0)


@pytest.fixture
def strict_dsn(postgres_dsn: str) -> str:
    with psycopg.connect(postgres_dsn, autocommit=True) as admin:
        name = admin.info.dbname
        admin.execute(f'ALTER DATABASE "{name}" SET default_transaction_isolation = serializable')
    return postgres_dsn


def test_all_jobs_are_done_in_a_serializable_database(
    strict_dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Without a retry, and no statement of the store is refused (40001): a worker would log that as an outage."""
    jobs = 360
    with ExitStack() as stack:
        store = stack.enter_context(open_store(strict_dsn, retry=NO_RETRY))
        workers = []
        for _ in range(3):
            own = stack.enter_context(open_store(strict_dsn))
            worker = JobWorker(own, lambda job: None, queues="q", concurrency=4, lease_ttl=1.0)
            stack.enter_context(Running(worker))
            workers.append(worker)
        with ThreadPoolExecutor(6) as pool:
            list(pool.map(lambda n: store.enqueue("q", {"n": n}), range(jobs)))
        until(lambda: store.stats("q")["q"].succeeded == jobs, 60)
        assert sum(worker.counts.lost + worker.counts.failed for worker in workers) == 0
    assert [record.message for record in caplog.records if "does not answer" in record.message] == []


@pytest.mark.parametrize("isolation", ["thread", "async"])
@pytest.mark.parametrize("level", ["serializable", "repeatable read", "read committed"])
def test_a_handler_gets_the_level_of_its_database(postgres_dsn: str, level: str, isolation: str) -> None:
    with psycopg.connect(postgres_dsn, autocommit=True) as admin:
        name = admin.info.dbname
        admin.execute(f"ALTER DATABASE \"{name}\" SET default_transaction_isolation = '{level}'")
    seen: list[str] = []

    def handle(job: Job, context: JobContext) -> None:
        seen.append(context.connection.execute("SHOW transaction_isolation").fetchone()[0])

    async def handle_async(job: Job, context: JobContext) -> None:
        cursor = await (await context.get_connection()).execute("SHOW transaction_isolation")
        seen.append((await cursor.fetchone())[0])

    with open_store(postgres_dsn) as store:
        store.enqueue_many("q", [{}, {}])
        handler = handle if isolation == "thread" else handle_async
        worker = JobWorker(store, handler, queues="q", concurrency=1, isolation=isolation)
        assert worker.run_until_idle().succeeded == 2
    assert seen == [level, level]
