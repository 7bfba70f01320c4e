"""Stores that are shared by several waiters or by forks, or that use a caller's connection as the caller set it up."""

from __future__ import annotations

import asyncio
import os
import resource
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from conquiet.flow import run
from conquiet.jobs import JobWorker, StoreOutcomeUnknownError, migrate, open_async_store, open_store
from conquiet.jobs.backends.postgres.listener import is_quiet
from tests.faults.figures import Record

QUEUES = ("a", "b")


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    dsns: dict[str, Callable[[], str]] = {
        "memory": lambda: "memory://",
        "sqlite": lambda: f"sqlite:///{tmp_path}/jobs.db",
        "postgresql": lambda: request.getfixturevalue("postgres_dsn"),
    }
    with open_store(dsns[request.param]()) as store:
        yield store


@pytest.fixture(params=["sqlite", "postgresql"])
def durable_dsn(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/jobs.db"
    return str(request.getfixturevalue("postgres_dsn"))


def test_nobody_takes_anothers_wake_up(store: Any) -> None:
    """Work for one queue arrives, and the waiter for another queue looks first."""
    waits: dict[str, Callable[[float], None]] = {}
    with store.listen("a") as waits["a"], store.listen("b") as waits["b"]:
        store.enqueue("a", {})
        assert store.claim("b") == []
        began = time.monotonic()
        waits["b"](0.01)
        waits["a"](10.0)
        assert time.monotonic() - began < 2
        assert len(store.claim("a")) == 1


def test_two_waiters_at_once_are_both_woken(store: Any) -> None:
    woken: list[float] = []
    began = time.monotonic()
    waiting = threading.Barrier(3)

    def wait(queue: str) -> None:
        with store.listen(queue) as until:
            waiting.wait()
            while not store.claim(queue):
                until(10.0)
            woken.append(time.monotonic() - began)

    threads = [threading.Thread(target=wait, args=(queue,)) for queue in QUEUES]
    for thread in threads:
        thread.start()
    waiting.wait()
    for queue in QUEUES:
        store.enqueue(queue, {})
    for thread in threads:
        thread.join(15)
    assert len(woken) == 2
    assert max(woken) < 5


def test_an_async_store_can_be_listened_to_by_two(durable_dsn: str) -> None:
    async def main() -> float:
        async with await open_async_store(durable_dsn) as store:
            ready = asyncio.Semaphore(0)

            async def wait(queue: str) -> None:
                async with store.listen(queue) as until:
                    ready.release()
                    while not await store.claim(queue):
                        await until(10.0)

            tasks = [asyncio.create_task(wait(queue)) for queue in QUEUES]
            for _ in QUEUES:
                await ready.acquire()
            began = time.monotonic()
            for queue in QUEUES:
                await store.enqueue(queue, {})
            await asyncio.wait_for(asyncio.gather(*tasks), 15)
            return time.monotonic() - began

    assert asyncio.run(main()) < 5


def test_a_released_job_wakes_who_waits(store: Any) -> None:
    store.enqueue("a", {})
    (job,) = store.claim("a", lease_ttl=600)
    with store.listen("a") as until:
        threading.Timer(0.05, store.release, (job,)).start()
        began = time.monotonic()
        until(10.0)
        while not (jobs := store.claim("a")):  # woken by the enqueue: its notification may be late
            until(10.0)
        assert time.monotonic() - began < 5
    assert len(jobs) == 1


@pytest.mark.clause("J-30")
def test_asyncio_handlers_with_transactions_do_not_wait_for_each_others_threads(durable_dsn: str) -> None:
    async def effect(job: Any, context: Any) -> None:
        connection = await context.get_connection()
        result = connection.execute("INSERT INTO effects VALUES (1)")
        if asyncio.iscoroutine(result):
            await result
        await asyncio.sleep(0.05)

    with open_store(durable_dsn) as store:
        connection: Any = run(store.operations.backend.begin())
        connection.execute("CREATE TABLE effects (n integer)")
        run(store.operations.backend.commit(connection))
        store.enqueue_many("a", [{}] * 4)
        began = time.monotonic()
        counts = JobWorker(store, effect, queues="a", isolation="async", concurrency=4).run_until_idle()
        assert counts.succeeded == 4
        assert time.monotonic() - began < 5


@pytest.mark.campaign
def test_a_fork_uses_connections_of_its_own(durable_dsn: str, record_figure: Record) -> None:
    with open_store(durable_dsn) as store:
        store.enqueue("a", {"from": "parent"})
        pids = []
        for number in range(3):
            pid = os.fork()
            if pid == 0:
                status = 1
                try:
                    for _ in range(20):
                        store.enqueue("a", {"from": number})
                    status = 0
                finally:
                    os._exit(status)
            pids.append(pid)
        ends = {os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids}
        arrived = store.stats("a")["a"].ready
        record_figure(
            f"{store.capabilities.name}: fork after connect, the child uses the parent's store",
            n=len(pids),
            lost=61 - arrived,
            the_child="connects anew",
            whole=True,
        )
        assert (ends, arrived) == ({0}, 61)


def test_the_callers_row_factory_is_its_own_affair(durable_dsn: str) -> None:
    with open_store(durable_dsn) as store:
        connection: Any
        if durable_dsn.startswith("sqlite"):
            connection = sqlite3.connect(vars(store.operations.backend)["path"])
            connection.row_factory = lambda cursor, row: {"row": row}
            connection.execute("BEGIN IMMEDIATE")
        else:
            connection = psycopg.connect(durable_dsn, row_factory=dict_row)
        job = store.enqueue("a", {}, connection=connection)
        connection.commit()
        (held,) = store.claim("a")
        assert held.id == job.id
        if durable_dsn.startswith("sqlite"):
            connection.execute("BEGIN IMMEDIATE")
        store.ack(held, connection=connection)
        connection.commit()
        connection.close()
        assert store.get(job.id).state == "Succeeded"


@pytest.mark.clause("J-16")
def test_a_row_that_refers_to_a_job_does_not_stop_its_heartbeats(postgres_dsn: str) -> None:
    with open_store(postgres_dsn) as store, psycopg.connect(postgres_dsn) as connection:
        connection.execute("CREATE TABLE parts (job text REFERENCES conquiet_jobs (id))")
        connection.commit()
        store.enqueue("a", {}, id="one")
        (job,) = store.claim("a", lease_ttl=60)
        connection.execute("INSERT INTO parts VALUES ('one')")  # holds a key share lock on the job's row
        assert store.heartbeat(job).lease.expires_at > job.lease.expires_at
        connection.rollback()


def test_waiting_works_beyond_the_first_thousand_descriptors(postgres_dsn: str) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        with open_store(postgres_dsn) as store, store.listen("a") as until:
            until(0.05)
    finally:
        for number in opened:
            os.close(number)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_after_a_lost_connection_the_idle_ones_are_not_tried_one_by_one(postgres_dsn: str) -> None:
    with open_store(postgres_dsn) as store:
        backend: Any = store.operations.backend
        barrier = threading.Barrier(5)

        def hold() -> None:
            barrier.wait()
            store.stats()

        threads = [threading.Thread(target=hold) for _ in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with psycopg.connect(postgres_dsn, autocommit=True) as other:
            other.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        assert backend._idle
        while any(is_quiet(connection) for connection, _ in backend._idle):
            pass  # until the disconnections have arrived
        store.enqueue("a", {})  # sent on a new connection
        assert store.stats("a")["a"].ready == 1


def test_an_enqueue_whose_answer_was_lost_says_its_id(postgres_dsn: str) -> None:
    with open_store(postgres_dsn) as store, psycopg.connect(postgres_dsn, autocommit=True) as other:
        store.enqueue("a", {})
        other.execute("BEGIN")
        other.execute("LOCK TABLE conquiet_jobs")
        failures: list[StoreOutcomeUnknownError] = []

        def enqueue() -> None:
            try:
                store.enqueue("a", {"n": 2})
            except StoreOutcomeUnknownError as error:
                failures.append(error)

        thread = threading.Thread(target=enqueue)
        thread.start()
        kill = (
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
            " WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
        while other.execute(kill).fetchone() == (0,):
            pass
        thread.join(10)
        other.execute("ROLLBACK")
        (error,) = failures
        assert store.enqueue("a", {"n": 2}, id=error.ids[0]).id == error.ids[0]


def test_a_database_that_is_refused_can_be_migrated_by_its_dsn(durable_dsn: str) -> None:
    assert migrate(durable_dsn) == ["0001_jobs", "0002_begun", "0003_history"]
    assert migrate(durable_dsn, 0) == ["0003_history (down)", "0002_begun (down)", "0001_jobs (down)"]
    open_store(durable_dsn).close()
    assert migrate(durable_dsn) == []


def test_a_relative_path_is_the_same_file_wherever_the_process_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with open_store("sqlite:///jobs.db") as store:
        store.enqueue("a", {})
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")

        async def handler(job: Any) -> None: ...

        assert JobWorker(store, handler, queues="a", isolation="async").run_until_idle().succeeded == 1
