"""Workers are notified of new jobs on PostgreSQL: those that serve the queue, rarely, and after the commit."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from conquiet.jobs import Job, JobState, JobStore, JobWorker, open_async_store, open_store
from conquiet.jobs.backends.postgres.listener import channel_of, listen_statement, waiting_place
from tests.chance import new_chance
from tests.integration.jobs.background import Running, until

END = "the end"


class Channel:
    """What arrives on the channel of a queue, for somebody who waits."""

    def __init__(self, dsn: str, queue: str) -> None:
        self._listener = psycopg.connect(dsn, autocommit=True)
        self._queue = queue
        self._listener.execute(listen_statement([queue]))

    def count(self) -> int:
        """How many notifications have been sent until now. One of our own is the last."""
        self._listener.execute("SELECT pg_notify(%s, %s)", (channel_of(self._queue), END))
        for number, notification in enumerate(self._listener.notifies()):
            if notification.payload == END:
                return number
        raise AssertionError("the connection has ended")

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def channel(clean_postgres: str) -> Iterator[Channel]:
    opened = Channel(clean_postgres, "q")
    yield opened
    opened.close()


def waiting(store: JobStore, queue: str) -> int:
    with store.listen(queue) as wait:
        wait(30.0)
    return store.operations.backend.notified  # type: ignore[attr-defined]


def test_idle_workers_do_not_wake_for_other_queues(clean_postgres: str) -> None:
    stores = [open_store(clean_postgres) for _ in range(10)]
    with open_store(clean_postgres) as producer, ThreadPoolExecutor(10) as threads:
        woken = [threads.submit(waiting, store, "a") for store in stores]
        with psycopg.connect(clean_postgres, autocommit=True) as server:
            while server.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'UNLISTEN *%LISTEN conquiet%'"
            ).fetchone() != (10,):
                pass
            for number in range(100):
                producer.enqueue("b", {"n": number})
                # In a transaction of its own it is not debounced: all of these are sent.
                with server.transaction():
                    producer.enqueue("b", {"n": number}, connection=server)
        producer.enqueue("a", {})
        assert [one.result(60) for one in woken] == [1] * 10
    for store in stores:
        store.close()


def test_many_enqueues_are_notified_of_together_and_the_last_one_too(
    clean_postgres: str, channel: Channel
) -> None:
    began = time.monotonic()
    with open_store(clean_postgres) as store:
        for number in range(500):
            store.enqueue("q", {"n": number})
    assert 1 <= channel.count() <= (time.monotonic() - began) / 0.01 + 2
    with open_store(clean_postgres) as store:
        store.enqueue("q", {})
    assert channel.count() == 1


def test_in_a_callers_transaction_it_is_sent_at_its_commit(clean_postgres: str, channel: Channel) -> None:
    with open_store(clean_postgres) as store, psycopg.connect(clean_postgres) as theirs:
        store.enqueue("q", {}, connection=theirs)
        assert channel.count() == 0
        theirs.commit()
        assert channel.count() == 1
        store.enqueue_many("q", [{}], connection=theirs, notify=False)
        theirs.commit()
        store.enqueue("q", {}, notify=False)
    assert channel.count() == 0


def url(dsn: str) -> str:
    return dsn.replace("postgresql://", "postgresql+psycopg://")


def test_with_a_session_it_is_sent_after_its_commit(clean_postgres: str, channel: Channel) -> None:
    engine = create_engine(url(clean_postgres))
    with Session(engine) as session:
        with open_store(clean_postgres) as store, session.begin_nested():
            store.enqueue("q", {}, connection=session)
        assert channel.count() == 0  # the store has been flushed, the session is not committed
        with open_store(clean_postgres) as store:
            store.enqueue("q", {}, connection=session)
            session.commit()
        with open_store(clean_postgres) as store:  # flushed, too
            store.enqueue("q", {}, connection=session, notify=False)
            session.commit()
    assert 1 <= channel.count() <= 2
    with engine.begin() as connection, Session(connection) as session:
        # Its commit is not the one that counts.
        store = open_store(clean_postgres)
        store.enqueue("q", {}, connection=session)
        session.commit()
        store.close()
        assert channel.count() == 0
    assert channel.count() == 1
    engine.dispose()


def test_with_an_asyncio_session_too(clean_postgres: str, channel: Channel) -> None:
    async def enqueue() -> None:
        engine = create_async_engine(url(clean_postgres))
        async with AsyncSession(engine) as session:
            store = await open_async_store(clean_postgres)
            await store.enqueue("q", {}, connection=session)
            assert channel.count() == 0
            await session.commit()
            await store.close()
        await engine.dispose()

    asyncio.run(enqueue())
    assert channel.count() == 1


PROGRAM = """
import os, sys
from conquiet.jobs import open_store
store = open_store(sys.argv[1])
store.enqueue("q", {})
child = os.fork()
store.enqueue("q", {})
if child:
    _, status = os.waitpid(child, 0)
    assert status == 0, status
"""


def test_a_process_that_ends_and_its_fork_send_what_is_pending(clean_postgres: str, channel: Channel) -> None:
    """Neither closes the store."""
    environment: dict[str, Any] = {**os.environ, "PYTHONWARNINGS": "ignore"}
    subprocess.run([sys.executable, "-c", PROGRAM, clean_postgres], env=environment, check=True, timeout=60)
    assert 2 <= channel.count() <= 3


class Overheard(Channel):
    """What arrives on the channel for somebody who listens without a sign that anybody waits."""

    def __init__(self, dsn: str, queue: str) -> None:
        super().__init__(dsn, queue)
        self._listener.execute("SELECT pg_advisory_unlock_all()")


@pytest.fixture
def overheard(clean_postgres: str) -> Iterator[Overheard]:
    opened = Overheard(clean_postgres, "q")
    yield opened
    opened.close()


def test_while_nobody_waits_nothing_is_sent(clean_postgres: str, overheard: Overheard) -> None:
    other = next(name for name in "abc" if waiting_place(channel_of(name)) != waiting_place(channel_of("q")))
    with open_store(clean_postgres) as elsewhere, elsewhere.listen(other):
        with open_store(clean_postgres) as store:
            for _ in range(100):
                store.enqueue("q", {})
            (job,) = store.claim("q")
            store.release(job)
        assert overheard.count() == 0
        with open_store(clean_postgres) as waits, waits.listen("q"), open_store(clean_postgres) as store:
            store.enqueue("q", {})
        assert overheard.count() == 1
        with open_store(clean_postgres) as store:  # it has ended, and its store is closed
            store.enqueue("q", {})
        assert overheard.count() == 0


def test_whoever_has_waited_does_not_any_more(clean_postgres: str, overheard: Overheard) -> None:
    """Their store stays open, and nothing is asked of it."""
    with open_store(clean_postgres) as waited:
        with waited.listen("q"):
            pass
        JobWorker(waited, str, queues="q").run_until_idle()
        with ThreadPoolExecutor(1) as threads:
            worker = JobWorker(waited, str, queues="q")
            ended = threads.submit(worker.run)
            with psycopg.connect(clean_postgres, autocommit=True) as server:
                while not server.execute("SELECT 1 FROM pg_locks WHERE locktype = 'advisory'").fetchone():
                    pass
            worker.stop()
            ended.result(60)
        with open_store(clean_postgres) as store:
            store.enqueue("q", {})
        assert overheard.count() == 0


def test_none_of_many_rows_of_jobs_is_slept_through(clean_postgres: str) -> None:
    """Several processes enqueue some jobs in a row; nobody, or somebody, begins to wait in the meantime."""
    chance = new_chance()
    stores = [open_store(clean_postgres) for _ in range(3)]
    with open_store(clean_postgres) as waits, ThreadPoolExecutor(3) as threads, waits.listen("q") as wait:

        def in_a_row(store: JobStore, pauses: list[float]) -> None:
            for pause in pauses:
                time.sleep(pause)
                store.enqueue("q", {})

        for _ in range(40):
            plans = [
                [chance.choice([0.0, 0.0, 0.002, 0.03]) for _ in range(chance.randrange(1, 8))]
                for _ in stores
            ]
            left = sum(map(len, plans))
            rows = [threads.submit(in_a_row, *one) for one in zip(stores, plans, strict=True)]
            while left:
                jobs = waits.claim("q", limit=5)
                waits.ack_many(jobs)
                left -= len(jobs)
                if not jobs:
                    asked = time.monotonic()
                    wait(60.0)  # a worker polls each 2 s: here it would show
                    assert time.monotonic() - asked < 30
                time.sleep(chance.choice([0.0, 0.01]))
            for row in rows:
                row.result()
    for store in stores:
        store.close()


@pytest.mark.parametrize("isolation", ["thread", "async"])
def test_a_busy_worker_keeps_nothing_in_the_servers_queue(clean_postgres: str, isolation: str) -> None:
    """Notifications that a session listens to and does not read fill the one queue of the server."""
    go_on = threading.Event()

    def handle(job: Job) -> None:
        go_on.wait(60)

    async def handle_async(job: Job) -> None:
        await asyncio.to_thread(go_on.wait, 60)

    with (
        open_store(clean_postgres) as store,
        psycopg.connect(clean_postgres, autocommit=True) as server,
    ):
        worker = JobWorker(
            store,
            handle if isolation == "thread" else handle_async,
            queues="q",
            concurrency=1,
            lease_ttl=0.3,
            isolation=isolation,
        )
        with Running(worker):
            until(lambda: server.execute("SELECT 1 FROM pg_locks WHERE locktype = 'advisory'").fetchone())
            store.enqueue("q", {})
            until(worker.running)
            for _ in range(40):  # more than the buffers of its connection hold
                text = "SELECT pg_notify(%s, n || repeat('x', 7000)) FROM generate_series(1, 100) AS n"
                server.execute(text, (channel_of("q"),))
            used = "SELECT pg_notification_queue_usage()"
            until(lambda: server.execute(used).fetchone() == (0.0,))
            assert not server.execute("SELECT 1 FROM pg_locks WHERE locktype = 'advisory'").fetchone()
            go_on.set()
            until(lambda: worker.counts.succeeded == 1)
            job = store.enqueue("q", {})  # and it listens again
            until(lambda: store.get(job.id).state is JobState.SUCCEEDED)
