"""How many connections a process takes: a limited number for callers, and what its workers need beyond them."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import psycopg
import pytest

from conquiet import Conquiet
from conquiet.embedded import PostgresServer
from conquiet.jobs import (
    Job,
    JobConfigError,
    JobContext,
    JobStore,
    JobWorker,
    StoreUnavailableError,
    open_async_store,
    open_store,
)
from conquiet.testing import VirtualDriver
from tests.integration.jobs.background import Running, until

NOTIFIER = 1  # a store that enqueues has one connection more, for notifications


class Observer:
    """Counts the connections to a database, other than its own."""

    def __init__(self, dsn: str) -> None:
        self._client = psycopg.connect(dsn, autocommit=True)

    def connections(self) -> int:
        row = self._client.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
            "AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
        ).fetchone()
        assert row is not None
        return int(row[0])

    def close(self) -> None:
        self._client.close()


@pytest.fixture
def observer(postgres_dsn: str) -> Iterator[Observer]:
    seen = Observer(postgres_dsn)
    yield seen
    seen.close()


@contextmanager
def blocked(dsn: str) -> Iterator[None]:
    """Every statement on the table of jobs waits for the end of the block."""
    with psycopg.connect(dsn) as obstacle:
        obstacle.execute("LOCK TABLE conquiet_jobs IN ACCESS EXCLUSIVE MODE")
        yield
        obstacle.rollback()


def waiting(dsn: str, number: int) -> Callable[[], bool]:
    """Whether so many statements wait for the lock."""

    def look() -> bool:
        with psycopg.connect(dsn, autocommit=True) as client:
            row = client.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
            ).fetchone()
        assert row is not None
        return int(row[0]) == number

    return look


def test_120_threads_enqueue_on_a_server_with_100_connections() -> None:
    with (
        PostgresServer(fsync=False, settings={"max_connections": 100}) as server,
        open_store(server.dsn) as store,
        ThreadPoolExecutor(120) as pool,
    ):
        start = threading.Barrier(120)

        def enqueue(n: int) -> list[str]:
            start.wait(60)
            return [store.enqueue("q", {"n": n, "i": i}).id for i in range(5)]

        ids = [job_id for some in pool.map(enqueue, range(120)) for job_id in some]
        assert len(set(ids)) == store.stats("q")["q"].ready == 600
        seen = Observer(server.dsn)
        assert seen.connections() <= 10 + NOTIFIER
        seen.close()


def test_120_tasks_enqueue_with_a_few_connections(postgres_dsn: str, observer: Observer) -> None:
    async def enqueue() -> int:
        async with await open_async_store(postgres_dsn, max_connections=3) as store:
            await asyncio.gather(*(store.enqueue("q", {"n": n}) for n in range(120)))
            assert observer.connections() <= 3 + NOTIFIER
            return (await store.stats("q"))["q"].ready

    assert asyncio.run(enqueue()) == 120


@pytest.mark.parametrize("limit", [1, 4])
def test_calls_beyond_max_connections_wait_for_their_turn(
    postgres_dsn: str, observer: Observer, limit: int
) -> None:
    with open_store(postgres_dsn, max_connections=limit) as store, ThreadPoolExecutor(12) as pool:
        with blocked(postgres_dsn):
            calls = [pool.submit(store.enqueue, "q", {"n": n}) for n in range(12)]
            until(waiting(postgres_dsn, limit))
            assert observer.connections() <= limit + 2  # and the obstacle and the look
        assert len({call.result(60).id for call in calls}) == 12


def test_who_waits_too_long_is_told_what_to_do(postgres_dsn: str) -> None:
    with open_store(postgres_dsn, max_connections=2) as store, ThreadPoolExecutor(2) as pool:
        with blocked(postgres_dsn):
            calls = [pool.submit(store.enqueue, "q", {"n": n}) for n in range(2)]
            until(waiting(postgres_dsn, 2))
            driver = VirtualDriver()
            with pytest.raises(StoreUnavailableError) as caught:
                driver.run(store.operations.get("job"))
            assert driver.clock.monotonic() >= 30.0
        assert "all 2 that this store may open. Nothing was changed: make fewer calls at a time" in str(
            caught.value
        )
        assert "max_connections=" in str(caught.value)
        for call in calls:
            call.result(60)
        assert store.get("job") is None  # its place was not lost


def test_a_cancelled_call_gives_its_turn_back(postgres_dsn: str) -> None:
    async def scene() -> int:
        async with await open_async_store(postgres_dsn, max_connections=1) as store:
            with blocked(postgres_dsn):
                first, second = (asyncio.create_task(store.enqueue("q", {"n": n})) for n in range(2))
                while not await asyncio.to_thread(waiting(postgres_dsn, 1)):
                    pass
                for call in (second, first):
                    call.cancel()
                await asyncio.gather(first, second, return_exceptions=True)
            await asyncio.wait_for(store.enqueue("q", {}, id="after"), 60)
            return len(await store.list())

    assert asyncio.run(scene()) >= 1


def test_a_failed_statement_gives_its_place_back(postgres_dsn: str) -> None:
    with open_store(postgres_dsn, max_connections=1) as store:
        with psycopg.connect(postgres_dsn, autocommit=True) as admin:
            admin.execute("ALTER TABLE conquiet_jobs RENAME TO away")
            for _ in range(3):
                with pytest.raises(StoreUnavailableError):
                    store.enqueue("q", {})
            admin.execute("ALTER TABLE away RENAME TO conquiet_jobs")
        assert store.enqueue("q", {}).queue == "q"


@pytest.mark.parametrize("isolation", ["thread", "async"])
def test_a_process_takes_as_many_connections_as_the_page_says(
    postgres_dsn: str, observer: Observer, isolation: str
) -> None:
    """docs/operations.md: max_connections, and for a worker 4 and one for each handler that is in a transaction."""
    places, limit, most = 6, 2, 0
    together = threading.Barrier(places, timeout=60)

    def count() -> None:
        nonlocal most
        most = max(most, observer.connections())

    def handle(job: Job, context: JobContext) -> None:
        context.connection.execute("SELECT 1")
        together.wait()
        store.enqueue("made", {"by": job.id})
        together.wait()

    async def handle_async(job: Job, context: JobContext) -> None:
        await (await context.get_connection()).execute("SELECT 1")
        await asyncio.to_thread(together.wait)
        await asyncio.to_thread(store.enqueue, "made", {"by": job.id})
        await asyncio.to_thread(together.wait)

    with open_store(postgres_dsn, max_connections=limit) as store:
        store.enqueue_many("q", [{"n": n} for n in range(10 * places)])
        worker = JobWorker(
            store,
            handle if isolation == "thread" else handle_async,
            queues="q",
            concurrency=places,
            lease_ttl=0.5,
            isolation=isolation,
        )
        with Running(worker) as running:

            def all_done() -> bool:
                count()
                return worker.counts.succeeded == 10 * places

            until(all_done, 60)
            running.stop()
        assert store.stats("made")["made"].ready == 10 * places
    assert places < most <= limit + NOTIFIER + 4 + places


def test_handlers_that_hold_everything_do_not_keep_their_worker_from_heartbeats(postgres_dsn: str) -> None:
    """All handlers are in transactions, all places are taken by calls that wait: leases are extended, jobs end once."""
    with ExitStack() as stack:
        store = stack.enter_context(open_store(postgres_dsn, max_connections=1))
        store.enqueue_many("q", [{"n": n} for n in range(4)])
        with psycopg.connect(postgres_dsn, autocommit=True) as admin:
            admin.execute("CREATE TABLE effects (n int PRIMARY KEY)")
        go, inside = threading.Event(), threading.Semaphore(0)

        def handle(job: Job, context: JobContext) -> None:
            context.connection.execute("INSERT INTO effects VALUES (%s)", (job.payload["n"],))
            inside.release()
            assert go.wait(60)

        worker = JobWorker(store, handle, queues="q", concurrency=4, lease_ttl=0.6)
        running = stack.enter_context(Running(worker))
        for _ in range(4):
            assert inside.acquire(timeout=60)
        obstacle = stack.enter_context(psycopg.connect(postgres_dsn))
        obstacle.execute("SELECT pg_advisory_lock(1)")
        with psycopg.connect(postgres_dsn, autocommit=True) as admin:
            admin.execute(
                "CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS "
                "$$ BEGIN PERFORM pg_advisory_xact_lock(1); RETURN NEW; END $$"
            )
            admin.execute(
                "CREATE TRIGGER wait BEFORE INSERT ON conquiet_jobs FOR EACH ROW EXECUTE FUNCTION wait()"
            )
        pool = stack.enter_context(ThreadPoolExecutor(3))
        calls = [pool.submit(store.enqueue, "other", {}) for _ in range(3)]
        until(waiting(postgres_dsn, 1))
        versions = leases(postgres_dsn)
        until(lambda: len(extended(versions, leases(postgres_dsn))) == 4)
        until(lambda: len(extended(versions, leases(postgres_dsn), by=1.5)) == 4)  # more than two ttl later
        go.set()
        until(lambda: worker.counts.succeeded == 4, 60)
        obstacle.execute("SELECT pg_advisory_unlock(1)")
        for call in calls:
            call.result(60)
        counts = running.stop()
    assert (counts.claimed, counts.succeeded, counts.lost) == (4, 4, 0)


def leases(dsn: str) -> dict[str, float]:
    with psycopg.connect(dsn) as client:
        rows = client.execute(
            "SELECT id, extract(epoch FROM lease_expires_at)::float8 FROM conquiet_jobs WHERE state = 'InFlight'"
        )
        return dict(rows.fetchall())


def extended(before: dict[str, float], after: dict[str, float], by: float = 0.0) -> list[str]:
    return [job_id for job_id, until in after.items() if until > before[job_id] + by]


def test_idle_connections_are_closed(postgres_dsn: str, observer: Observer) -> None:
    with open_store(postgres_dsn) as store:
        backend: Any = store.operations.backend
        backend.idle_seconds = 0.2
        with ThreadPoolExecutor(6) as pool, blocked(postgres_dsn):
            calls = [pool.submit(store.enqueue, "q", {"n": n}) for n in range(6)]
            until(waiting(postgres_dsn, 6))
        for call in calls:
            call.result(60)
        until(lambda: store.get("none") is None and observer.connections() == 1)


def test_a_process_that_makes_no_more_calls_keeps_no_connection(
    postgres_dsn: str, observer: Observer
) -> None:
    """Nothing in the process runs that could close them: the server does."""
    with open_store(postgres_dsn) as store:
        store.close()
    with open_store(postgres_dsn) as store:
        backend: Any = store.operations.backend
        backend.idle_seconds = 0.1
        with blocked(postgres_dsn), ThreadPoolExecutor(3) as pool:
            calls = [pool.submit(store.get, "none") for _ in range(3)]
            until(waiting(postgres_dsn, 3))
            with psycopg.connect(postgres_dsn, autocommit=True) as admin:
                admin.execute(
                    "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event_type = 'Lock' "
                    "AND datname = current_database()"
                )
            for call in calls:
                assert isinstance(call.exception(60), StoreUnavailableError)
        until(lambda: observer.connections() <= 1)  # the first one was opened before the setting
        store.enqueue("q", {}, id="later")
        assert store.get("later") is not None


def test_a_waiting_worker_keeps_listening_beyond_the_idle_time(postgres_dsn: str) -> None:
    done = threading.Event()
    with open_store(postgres_dsn) as store:
        backend: Any = store.operations.backend
        backend.idle_seconds = 0.05
        with psycopg.connect(postgres_dsn, autocommit=True) as admin:

            def listening() -> set[int]:
                rows = admin.execute(
                    "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'UNLISTEN *%LISTEN conquiet%'"
                )
                return {pid for (pid,) in rows}

            with Running(JobWorker(store, lambda job: done.set(), queues="q")):
                before = until(listening)
                admin.execute("SELECT pg_sleep(0.5)")
                assert listening() == before
                store.enqueue("q", {})
                assert done.wait(60)


def test_a_forked_child_has_all_places(postgres_dsn: str) -> None:
    with open_store(postgres_dsn, max_connections=1) as store, ThreadPoolExecutor(1) as pool:
        with blocked(postgres_dsn):
            call = pool.submit(store.enqueue, "q", {})
            until(waiting(postgres_dsn, 1))
            read, write = os.pipe()
            child = os.fork()
            if child == 0:  # the place of the parent's thread must not be missing here
                try:
                    os.read(read, 1)
                    store.enqueue("q", {}, id="of-the-child")
                finally:
                    os._exit(0)
        os.write(write, b"x")
        call.result(60)
        os.waitpid(child, 0)
        os.close(read)
        os.close(write)
        assert store.get("of-the-child") is not None


@pytest.mark.parametrize("number", [0, -1, 1.5, "10", True])
def test_max_connections_is_checked(number: Any) -> None:
    with pytest.raises(JobConfigError, match="max_connections"):
        open_store("memory://", max_connections=number)


def test_an_app_has_the_option(postgres_dsn: str, observer: Observer) -> None:
    app = Conquiet(postgres_dsn, max_connections=2)

    @app.task
    def nothing() -> None: ...

    with app, ThreadPoolExecutor(20) as pool:
        list(pool.map(lambda n: nothing.enqueue(), range(60)))
        assert observer.connections() <= 2 + NOTIFIER
        assert _stored(app.store) == 60


def _stored(store: JobStore) -> int:
    return store.stats("default")["default"].ready
