"""The store goes away and comes back while a worker runs: it logs that once, and goes on by itself."""

from __future__ import annotations

import asyncio
import json
import logging
import resource
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from conquiet.connectors import JobConnector
from conquiet.embedded import PostgresServer
from conquiet.errors import StoreUnavailableError
from conquiet.jobs import (
    Job,
    JobState,
    JobStore,
    JobWorker,
    RetrySchedule,
    open_async_store,
    open_store,
)
from tests.descriptors import descriptors_left
from tests.integration.jobs.background import Running, until
from tests.integration.jobs.effects import Effects, insert, insert_async
from tests.integration.jobs.processes import Program

Start = Callable[[JobWorker], Running]
QUICK = RetrySchedule(max_retries=3, base_seconds=0.01, max_seconds=0.01)
pytestmark = pytest.mark.clause("J-23")
both = pytest.mark.parametrize("isolation", ["thread", "async"])


@pytest.fixture(scope="module")
def own_server() -> Iterator[PostgresServer]:
    """A server that the test may kill."""
    with PostgresServer() as server:
        yield server


@pytest.fixture
def server(own_server: PostgresServer) -> PostgresServer:
    if not own_server.running:
        own_server.start()
    return own_server


@pytest.fixture
def postgres(server: PostgresServer) -> Iterator[JobStore]:
    with open_store(server.dsn, retry=QUICK) as store:
        store.prune(older_than=0)
        yield store


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """What the worker has logged about its store."""
    caplog.set_level(logging.WARNING, "conquiet.jobs")
    beginnings = ("the job store does not answer", "the job store answers again")
    return lambda: [
        text[: text.index(" ", 25)] if text.startswith(beginnings) else text
        for text in (r.getMessage() for r in caplog.records if r.name == "conquiet.jobs")
        if "the job store" in text
    ]


ONCE = ["the job store does not answer;", "the job store answers again,"]


async def pause_async(job: Job) -> None:
    await asyncio.sleep(0.005)


def pause(job: Job) -> None:
    time.sleep(0.005)


@pytest.mark.parametrize(("isolation", "transactional"), [("thread", False), ("async", True)])
def test_killed_under_load_nothing_is_lost_and_nothing_acknowledged_twice(
    postgres: JobStore,
    server: PostgresServer,
    start: Start,
    said: Callable[[], list[str]],
    isolation: str,
    transactional: bool,
) -> None:
    jobs = 400
    effects = Effects(postgres)
    ids = postgres.enqueue_many("q", [{"n": n} for n in range(jobs)])
    thread, coroutine = (insert, insert_async) if transactional else (pause, pause_async)
    worker = JobWorker(
        postgres,
        thread if isolation == "thread" else coroutine,
        queues="q",
        isolation=isolation,
        lease_ttl=2.0,
    )
    running = start(worker)
    until(lambda: worker.counts.succeeded > 50)
    server.kill()
    until(lambda: len(said()) == 1)
    time.sleep(0.5)
    assert worker.counts.succeeded < jobs
    server.start()
    until(lambda: postgres.stats("q")["q"].succeeded == jobs, 60)
    counts = running.stop()
    assert said() == ONCE
    for job in map(postgres.get, ids):
        assert [a.outcome for a in job.attempts].count("succeeded") == 1
        assert job.attempts[-1].outcome == "succeeded"
    assert counts.succeeded == jobs
    if transactional:
        assert effects.numbers() == list(range(jobs))


@both
def test_not_there_at_the_start_it_is_waited_for(
    postgres: JobStore, server: PostgresServer, start: Start, said: Callable[[], list[str]], isolation: str
) -> None:
    job = postgres.enqueue("q", {})
    server.kill()
    handler = pause if isolation == "thread" else pause_async
    running = start(JobWorker(postgres, handler, queues="q", isolation=isolation))
    until(lambda: len(said()) == 1)
    time.sleep(0.3)
    assert not running.ended
    server.start()
    until(lambda: postgres.get(job.id).state is JobState.SUCCEEDED)
    running.stop()
    assert said() == ONCE


@both
def test_an_idle_worker_says_it_once_too(
    postgres: JobStore, server: PostgresServer, start: Start, said: Callable[[], list[str]], isolation: str
) -> None:
    postgres.enqueue("q", {})
    worker = JobWorker(
        postgres, pause if isolation == "thread" else pause_async, queues="q", isolation=isolation
    )
    running = start(worker)
    until(lambda: worker.counts.succeeded == 1)
    time.sleep(0.1)
    server.kill()
    until(lambda: len(said()) == 1)
    time.sleep(0.5)
    server.start()
    job = postgres.enqueue("q", {})
    until(lambda: postgres.get(job.id).state is JobState.SUCCEEDED)
    running.stop()
    assert said() == ONCE


@both
def test_many_queues_and_many_lost_leases_are_three_lines(
    postgres: JobStore,
    server: PostgresServer,
    start: Start,
    caplog: pytest.LogCaptureFixture,
    isolation: str,
) -> None:
    """It is away, it is back, and what that cost: not one line per queue or job."""
    caplog.set_level(logging.WARNING, "conquiet.jobs")
    go_on = threading.Event()

    def handle(job: Job) -> None:
        go_on.wait(30)

    async def handle_async(job: Job) -> None:
        await asyncio.to_thread(go_on.wait, 30)

    queues: dict[str, int | None] = dict.fromkeys("abcdef", 3)
    for queue in queues:
        postgres.enqueue_many(queue, [{}] * 3)
    worker = JobWorker(
        postgres,
        handle if isolation == "thread" else handle_async,
        queues=queues,
        isolation=isolation,
        lease_ttl=0.6,
    )
    running = start(worker)
    until(lambda: len(worker.running()) == 18)
    server.kill()
    time.sleep(1.5)  # longer than the leases
    server.start()
    while postgres.claim(list(queues), limit=18) or not all(
        context.lease_lost.is_set() for context in worker.running()
    ):
        time.sleep(0.01)  # nobody else would take the jobs: here the leases are lost
    go_on.set()
    running.stop()
    lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert [line.split(";")[0].split(",")[0] for line in lines if "job store" in line] == [
        "the job store does not answer",
        "the job store answers again",
    ]
    assert len(lines) <= 3, lines


@both
def test_what_was_finished_during_the_outage_is_settled_after_it(
    postgres: JobStore, server: PostgresServer, start: Start, said: Callable[[], list[str]], isolation: str
) -> None:
    go_on, calls = threading.Event(), []

    def handle(job: Job) -> None:
        calls.append(job.id)
        go_on.wait(30)

    async def handle_async(job: Job) -> None:
        calls.append(job.id)
        await asyncio.to_thread(go_on.wait, 30)

    job = postgres.enqueue("q", {})
    running = start(
        JobWorker(
            postgres,
            handle if isolation == "thread" else handle_async,
            queues="q",
            isolation=isolation,
            lease_ttl=30,
        )
    )
    until(lambda: calls)
    server.kill()
    go_on.set()
    until(lambda: len(said()) == 1)
    server.start()
    done = until(lambda: (found := postgres.get(job.id)).state is JobState.SUCCEEDED and found)
    assert [a.outcome for a in done.attempts] == ["succeeded"]
    assert calls == [job.id]  # not a second time
    assert running.stop().succeeded == 1


@both
def test_it_can_be_stopped_while_the_store_is_away(
    postgres: JobStore, server: PostgresServer, start: Start, isolation: str
) -> None:
    """With results that it cannot settle it waits as long as allowed; a second stop() ends it immediately."""
    go_on = threading.Event()

    def handle(job: Job) -> None:
        go_on.wait(30)

    async def handle_async(job: Job) -> None:
        await asyncio.to_thread(go_on.wait, 30)

    job = postgres.enqueue("q", {})
    handler = handle if isolation == "thread" else handle_async
    running = start(JobWorker(postgres, handler, queues="q", isolation=isolation, lease_ttl=1.0))
    until(running.worker.running)
    server.kill()
    running.worker.stop()
    go_on.set()
    time.sleep(0.3)
    assert not running.ended
    asked = time.monotonic()
    counts = running.stop()
    assert time.monotonic() - asked < 1.5
    assert (counts.succeeded, counts.lost) == (0, 1)
    server.start()
    (again,) = until(lambda: postgres.claim("q"))  # it runs again
    assert (again.id, again.lease.version) == (job.id, 2)
    postgres.ack(again)


def test_an_idle_worker_is_stopped_promptly_while_the_store_is_away(
    postgres: JobStore, server: PostgresServer, start: Start, said: Callable[[], list[str]]
) -> None:
    running = start(JobWorker(postgres, pause, queues="q"))
    time.sleep(0.1)
    server.kill()
    until(lambda: len(said()) == 1)
    asked = time.monotonic()
    running.stop()
    assert time.monotonic() - asked < 0.5


@both
def test_an_sqlite_file_locked_by_another_process(tmp_path: Path, start: Start, isolation: str) -> None:
    """The lock lasts longer than the leases: finished jobs are settled, or refused and run again."""
    jobs, path = 40, tmp_path / "jobs.db"
    with open_store(f"sqlite:///{path}", retry=QUICK) as store:
        ids = store.enqueue_many("q", [{"n": n} for n in range(jobs)])
        handler = pause if isolation == "thread" else pause_async
        worker = JobWorker(store, handler, queues="q", isolation=isolation, lease_ttl=0.5, concurrency=2)
        running = start(worker)
        until(lambda: worker.counts.claimed)
        with Program("lock", path=str(path)):
            time.sleep(1.2)
        until(lambda: store.stats("q")["q"].succeeded == jobs)
        assert running.stop().succeeded == jobs
        for job in map(store.get, ids):
            assert [a.outcome for a in job.attempts].count("succeeded") == 1
            # Released: on a slow machine its lease has lapsed by our clock before it begins.
            assert {a.outcome for a in job.attempts} <= {"succeeded", "lease expired", "released"}
    with sqlite3.connect(path) as connection:
        assert json.dumps(connection.execute("PRAGMA integrity_check").fetchall()) == '[["ok"]]'
    connection.close()


@both
def test_without_a_file_descriptor_it_waits_for_one(
    postgres: JobStore, server: PostgresServer, start: Start, said: Callable[[], list[str]], isolation: str
) -> None:
    handler = pause if isolation == "thread" else pause_async
    worker = JobWorker(postgres, handler, queues="q", isolation=isolation)
    with psycopg.connect(server.dsn, autocommit=True) as admin:
        postgres.enqueue("q", {})
        running = start(worker)
        until(lambda: worker.counts.succeeded == 1)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))  # it cannot even reopen what it closes
        try:
            admin.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
                "WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
            )
            until(said)
            assert not running.ended
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    postgres.enqueue("q", {})
    until(lambda: worker.counts.succeeded == 2)
    assert not running.ended
    # Once or more: while a connection lives a claim may succeed and the listening one be lost.
    until(lambda: len(said()) % 2 == 0)
    running.stop()
    assert said() == ONCE * (len(said()) // 2)


@pytest.mark.parametrize("left", range(5))
def test_with_few_file_descriptors_a_store_works_or_says_so(server: PostgresServer, left: int) -> None:
    with open_store(server.dsn) as store:
        refused = []

        def listened() -> None:
            try:
                with store.listen("q") as wait:
                    wait(0.0)
            except StoreUnavailableError as error:
                refused.append(str(error))

        async def listened_async() -> None:
            try:
                with descriptors_left(left):
                    async with await open_async_store(server.dsn) as other, other.listen("q") as wait:
                        await wait(0.0)
            except StoreUnavailableError as error:
                refused.append(str(error))

        with descriptors_left(left):
            listened()
        asyncio.run(listened_async())
        assert refused or left > 2  # a connection, and two descriptors to wake the listener
        refused.clear()
        listened()
        assert refused == []


def test_workers_and_connectors_of_a_store_say_it_together(
    postgres: JobStore, server: PostgresServer, start: Start, said: Callable[[], list[str]]
) -> None:
    """Two workers, one with lanes, on two stores of the same address, and a connector whose leases cannot be extended."""
    postgres.enqueue("held", {})
    with open_store(server.dsn) as twin, PostgresServer() as other, open_store(other.dsn) as elsewhere:
        connector = JobConnector(postgres, "held", lease_ttl=0.6)
        assert len(connector.fetch_transactions(1)) == 1
        workers = [
            JobWorker(postgres, pause, queues="q"),
            JobWorker(twin, pause, queues={"a": 1, "b": 1, "q": None}),
            JobWorker(twin, pause_async, queues="q", isolation="async"),
        ]
        for worker in workers:
            start(worker)
        beside = start(JobWorker(elsewhere, pause, queues="q"))
        job = postgres.enqueue("q", {})
        until(lambda: postgres.get(job.id).state is JobState.SUCCEEDED)
        server.kill()
        until(lambda: len(said()) == 1)
        assert elsewhere.get(elsewhere.enqueue("q", {}).id)  # another server: it is not away
        time.sleep(1.0)
        server.start()
        until(lambda: len(said()) == 2)
        while not postgres.claim("held"):
            time.sleep(0.01)  # nobody else would take it: here the connector loses its lease, or has lost it
        jobs = [postgres.enqueue(queue, {}) for queue in ("a", "b", "q")]
        until(lambda: all(postgres.get(one.id).state is JobState.SUCCEEDED for one in jobs))
        assert said() == ONCE
        other.kill()
        until(lambda: len(said()) == 3)
        other.start()
        until(lambda: len(said()) == 4)
        beside.stop()
        assert said() == ONCE * 2


def test_whoever_comes_after_the_last_one_has_left_knows_of_no_outage(
    postgres: JobStore, server: PostgresServer, start: Start, said: Callable[[], list[str]]
) -> None:
    server.kill()
    running = start(JobWorker(postgres, pause, queues="q"))
    until(lambda: len(said()) == 1)
    running.stop()
    server.start()
    job = postgres.enqueue("q", {})
    start(JobWorker(postgres, pause, queues="q"))
    until(lambda: postgres.get(job.id).state is JobState.SUCCEEDED)
    assert said() == ONCE[:1]
