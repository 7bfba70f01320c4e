"""What a real PostgreSQL refuses or aborts, by SQLSTATE: it is named, nothing is lost, no effect happens twice."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any
from urllib.parse import quote

import psycopg
import pytest

from conquiet.embedded import PostgresServer
from conquiet.jobs import (
    Job,
    JobContext,
    JobState,
    JobStore,
    JobWorker,
    NewJob,
    RetrySchedule,
    StoreUnavailableError,
    open_store,
)
from tests.conformance.sources import waiting_backend
from tests.faults.figures import Record
from tests.integration.jobs.background import Running, until
from tests.integration.jobs.effects import Effects, insert

RETRY = RetrySchedule(max_retries=1_000, base_seconds=0.01, max_seconds=0.05)
pytestmark = pytest.mark.campaign  # always runs in full; part of the campaign's list


def with_option(dsn: str, option: str) -> str:
    return f"{dsn}?options={quote(f'-c {option}')}"


@pytest.fixture
def store(postgres_dsn: str) -> Iterator[JobStore]:
    with open_store(postgres_dsn, retry=RETRY, max_lease_expiries=1_000) as opened:
        yield opened


def causes(store: JobStore, ids: list[str]) -> list[str]:
    """The causes of the failed attempts."""
    jobs = [job for job in map(store.get, ids) if job is not None]
    return [
        f"{a.error_type}: {a.error_message}" for job in jobs for a in job.attempts if a.outcome == "failed"
    ]


def judge(store: JobStore, ids: list[str]) -> int:
    """The number of lost jobs, which must be 0."""
    states = [job.state if (job := store.get(job_id)) else None for job_id in ids]
    assert states == [JobState.SUCCEEDED] * len(ids)
    return 0


def test_40001_serialization_failure(postgres_dsn: str, store: JobStore, record_figure: Record) -> None:
    """All transactions are serializable, and all handlers update the same row."""
    effects = Effects(store)
    effects.execute("CREATE TABLE counter (n INTEGER)")
    effects.execute("INSERT INTO counter VALUES (0)")
    jobs = 30

    def count(job: Job, context: JobContext) -> None:
        ((n,),) = context.connection.execute("SELECT n FROM counter").fetchall()
        time.sleep(0.002)
        context.connection.execute("UPDATE counter SET n = %s", (n + 1,))
        insert(job, context)

    strict = with_option(postgres_dsn, "default_transaction_isolation=serializable")
    ids = store.enqueue_many("q", [{"n": n} for n in range(jobs)])
    with ExitStack() as stack:
        for _ in range(2):
            opened = stack.enter_context(open_store(strict, retry=RETRY, max_lease_expiries=1_000))
            stack.enter_context(Running(JobWorker(opened, count, queues="q", concurrency=3, lease_ttl=2.0)))
        until(lambda: store.stats("q")["q"].succeeded == jobs, 60)
    lost, failures = judge(store, ids), causes(store, ids)
    record_figure("PostgreSQL 40001 serialization failure", n=len(failures), lost=lost, whole=True)
    assert effects.execute("SELECT n FROM counter") == [(jobs,)]
    assert effects.numbers() == list(range(jobs))
    assert any("could not serialize" in said for said in failures)


def test_40p01_deadlock(postgres_dsn: str, store: JobStore, record_figure: Record) -> None:
    """Two handlers lock the same rows in opposite order: one is aborted, and runs again."""
    effects = Effects(store)
    effects.execute("CREATE TABLE account (id INTEGER PRIMARY KEY, n INTEGER)")
    effects.execute("INSERT INTO account VALUES (0, 0), (1, 0)")
    both_have_one = threading.Barrier(2)

    def transfer(job: Job, context: JobContext) -> None:
        first = job.payload["n"]
        context.connection.execute(f"UPDATE account SET n = n + 1 WHERE id = {first}")
        if job.retries == 0:
            both_have_one.wait(30)
        context.connection.execute(f"UPDATE account SET n = n + 1 WHERE id = {1 - first}")
        insert(job, context)

    ids = store.enqueue_many("q", [{"n": 0}, {"n": 1}])
    with open_store(with_option(postgres_dsn, "deadlock_timeout=50ms"), retry=RETRY) as impatient:
        counts = JobWorker(impatient, transfer, queues="q").run_until_idle(wait_for_delayed=True)
    lost, failures = judge(store, ids), causes(store, ids)
    record_figure("PostgreSQL 40P01 deadlock", n=len(failures), lost=lost, whole=True)
    assert [said.partition(":")[0] for said in failures] == ["DeadlockDetected"]
    assert (counts.succeeded, counts.failed) == (2, 1)
    assert effects.execute("SELECT n FROM account") == [(2,), (2,)]
    assert effects.numbers() == [0, 1]


def test_57p01_admin_shutdown(postgres_dsn: str, store: JobStore, record_figure: Record) -> None:
    """An administrator terminates every connection, again and again, whatever it is doing."""
    effects = Effects(store)
    rounds, a_round = 10, 6
    jobs = rounds * a_round
    ended: list[int] = []

    def slow(job: Job, context: JobContext) -> None:
        insert(job, context)
        time.sleep(0.005)

    ids: list[str] = []
    with (
        open_store(postgres_dsn, retry=RETRY, max_lease_expiries=1_000) as own,
        psycopg.connect(postgres_dsn, autocommit=True) as admin,
        Running(JobWorker(own, slow, queues="q", concurrency=4, lease_ttl=1.0)),
    ):
        for n in range(0, jobs, a_round):
            new = [NewJob({"n": n + i}, id=f"job-{n + i}") for i in range(a_round)]
            with psycopg.connect(postgres_dsn) as connection:  # it is not terminated
                store.enqueue_many("q", new, connection=connection)
            ids += [job.id or "" for job in new]
            admin.execute("SELECT pg_sleep(0.02)")
            ended.append(until(lambda: terminated(admin)))  # none while the worker connects anew
        until(lambda: store_succeeded(admin) == jobs, 60)
    lost = judge(store, ids)
    numbers = effects.numbers()
    record_figure(
        "PostgreSQL 57P01 admin shutdown", n=sum(ended), lost=lost, doubled=len(numbers) - jobs, whole=True
    )
    assert numbers == list(range(jobs))


def terminated(admin: psycopg.Connection[Any]) -> int:
    """The number of connections to this database that the administrator has ended now."""
    statement = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    return len(admin.execute(statement).fetchall())


def store_succeeded(admin: psycopg.Connection[Any]) -> int:
    row = admin.execute("SELECT count(*) FROM conquiet_jobs WHERE state = 'Succeeded'").fetchone()
    assert row is not None
    return int(row[0])


@pytest.mark.parametrize("operation", ["claim", "heartbeat", "ack", "nack", "release", "enqueue"])
def test_57014_query_canceled(
    postgres_dsn: str, store: JobStore, record_figure: Record, operation: str
) -> None:
    """A running statement is cancelled: the error says that nothing was changed, and a later call works."""
    store.enqueue("q", {}, id="job")
    (held,) = store.claim("q", lease_ttl=600.0)
    calls: dict[str, Callable[[], object]] = {
        "claim": lambda: store.claim("q"),
        "heartbeat": lambda: store.heartbeat(held),
        "ack": lambda: store.ack(held),
        "nack": lambda: store.nack(held),
        "release": lambda: store.release(held),
        "enqueue": lambda: store.enqueue("q", {}, id="another"),
    }
    before = store.list()
    with (
        psycopg.connect(postgres_dsn) as obstacle,
        psycopg.connect(postgres_dsn, autocommit=True) as admin,
        ThreadPoolExecutor(1) as beside,
    ):
        obstacle.execute("LOCK TABLE conquiet_jobs IN EXCLUSIVE MODE")
        outcome: Future[object] = beside.submit(calls[operation])
        admin.execute("SELECT pg_cancel_backend(%s)", (waiting_backend(admin),))
        error = outcome.exception(30)
        obstacle.rollback()
    assert type(error) is StoreUnavailableError
    assert isinstance(error.__cause__, psycopg.errors.QueryCanceled)
    assert str(error).endswith("Nothing was changed")
    assert store.list() == before
    calls[operation]()
    record_figure(f"PostgreSQL 57014 query canceled ({operation})", n=1, whole=True)


def test_53300_too_many_connections(record_figure: Record) -> None:
    """All connections are taken: a new store reports it; a worker waits, and goes on when a connection is free."""
    with PostgresServer(settings={"max_connections": 8, "superuser_reserved_connections": 0}) as server:
        with open_store(server.dsn, retry=RETRY) as store:
            effects = Effects(store)
            ids = store.enqueue_many("q", [{"n": n} for n in range(20)])
        hogs: list[psycopg.Connection[Any]] = []
        refused = 0
        while not refused:
            try:
                hogs.append(psycopg.connect(server.dsn))
            except psycopg.OperationalError:
                refused += 1
        with pytest.raises(StoreUnavailableError, match="too many clients") as caught:
            open_store(server.dsn)
        assert server.dsn.split(":")[2].split("@")[0] not in str(caught.value)
        hogs.pop().close()
        with opened_at_last(server.dsn) as opened:  # it has one connection, and will need more
            worker = JobWorker(opened, insert, queues="q", concurrency=4, lease_ttl=2.0)
            with Running(worker) as running:
                until(lambda: worker.counts.claimed > 0)
                for hog in hogs:
                    hog.close()
                until(lambda: worker.counts.succeeded == 20, 60)
                running.stop()
            lost = judge(opened, ids)
        record_figure("PostgreSQL 53300 too many connections", n=refused + 1, lost=lost, whole=True)
        assert effects.numbers() == list(range(20))


def opened_at_last(dsn: str) -> JobStore:
    """A store, as soon as the server has noticed that a connection is free. Asking it first would take that connection."""
    opened: list[JobStore] = []

    def opens() -> bool:
        try:
            opened.append(open_store(dsn, retry=RETRY))
        except StoreUnavailableError:
            return False
        return True

    until(opens)
    return opened[0]
