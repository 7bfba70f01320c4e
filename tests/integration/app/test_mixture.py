"""Plain functions and coroutines in one worker: coroutines share its event loop, functions have threads."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest
import redis.asyncio

from conquiet import Conquiet
from conquiet.flow import run
from conquiet.jobs import Job, JobConfigError, JobState, JobWorker, open_async_store, open_store
from tests.integration.app.conftest import QUICK
from tests.integration.jobs.background import Running, until


def test_a_shared_client_works_in_all_coroutines_of_a_mixed_app(app: Conquiet, redis_url: str) -> None:
    client = redis.asyncio.Redis.from_url(redis_url)
    loops: set[asyncio.AbstractEventLoop] = set()
    threads: set[threading.Thread] = set()

    @app.task
    async def count(key: str) -> None:
        loops.add(asyncio.get_running_loop())
        await client.incr(key)

    @app.task
    async def read(key: str) -> None:
        loops.add(asyncio.get_running_loop())
        await client.get(key)

    @app.task
    def plain() -> None:
        threads.add(threading.current_thread())
        with pytest.raises(RuntimeError):
            asyncio.get_running_loop()

    for task, calls in ((count, [("n",)] * 40), (read, [("n",)] * 40), (plain, [()] * 40)):
        task.enqueue_many(calls)

    async def main() -> None:
        try:
            counts = await app.worker(concurrency=6).run_async(until_idle=True)
            assert (counts.succeeded, counts.failed) == (120, 0)
            assert int(await client.get("n")) == 40
        finally:
            await client.aclose()
            await app.close_async()

    asyncio.run(main())
    assert len(loops) == 1
    assert threading.main_thread() not in threads


def test_a_function_that_takes_long_does_not_hold_up_coroutines(memory: Conquiet) -> None:
    go_on, ended = threading.Event(), threading.Event()

    @memory.task
    def slow() -> None:
        assert go_on.wait(30)

    @memory.task
    async def quick() -> None:
        await asyncio.sleep(0)
        ended.set()

    running = slow.enqueue()
    with Running(memory.worker(concurrency=2)) as worker:
        until(lambda: memory.store.get(running.id).state is JobState.IN_FLIGHT)
        quick.enqueue()
        assert ended.wait(30)
        go_on.set()
        until(lambda: worker.worker.counts.succeeded == 2)


def test_each_has_the_connection_of_its_kind(app: Conquiet) -> None:
    """Both kinds of effects are in the transaction of their acknowledgement."""

    def rows(sql: str) -> list[Any]:
        backend = app.store.operations.backend
        connection = run(backend.begin())
        found = connection.execute(sql)
        result = [tuple(row) for row in found.fetchall()] if found.description else []
        run(backend.commit(connection))
        return result

    rows("CREATE TABLE effects (what TEXT)")

    @app.task
    def plain(fails: bool) -> None:
        app.context.connection.execute("INSERT INTO effects VALUES ('plain')")
        if fails and not app.context.job.attempts:
            raise ValueError("after the effect")

    @app.task
    async def coroutine(fails: bool) -> None:
        connection = await app.context.get_connection()
        inserted = connection.execute("INSERT INTO effects VALUES ('coroutine')")
        if asyncio.iscoroutine(inserted):  # on PostgreSQL
            await inserted
        if fails and not app.context.job.attempts:
            raise ValueError("after the effect")

    for fails in (False, True):
        plain.enqueue(fails)
        coroutine.enqueue(fails)
    counts = app.worker(concurrency=1).run_until_idle(wait_for_delayed=True)
    assert (counts.succeeded, counts.failed) == (4, 2)
    assert sorted(rows("SELECT what FROM effects")) == [("coroutine",)] * 2 + [("plain",)] * 2


def test_limits_of_both(memory: Conquiet) -> None:
    go_on = threading.Event()

    @memory.task(timeout=0.05)
    def slow() -> None:
        go_on.wait(30)

    @memory.task(timeout=0.05)
    async def slow_too() -> None:
        await asyncio.sleep(30)

    jobs = [task.options().enqueue() for task in (slow, slow_too)]
    memory.worker().run_until_idle()
    go_on.set()
    first, second = (memory.store.get(job.id) for job in jobs)
    assert "its thread cannot be stopped and was abandoned" in first.error
    assert "ran past its limit of 0.05 s and was cancelled" in second.error


def test_at_the_end_a_function_that_runs_on_is_not_given_to_others() -> None:
    """Its coroutine neighbour is cancelled and released; the function keeps its lease until that lapses."""
    begun, go_on = threading.Semaphore(0), threading.Event()

    def function(job: Job) -> None:
        begun.release()
        go_on.wait(60)

    async def coroutine(job: Job) -> None:
        begun.release()
        await asyncio.sleep(60)

    with open_store("memory://", retry=QUICK) as store:
        ids = {queue: store.enqueue(queue, {}).id for queue in ("f", "c")}
        worker = JobWorker(store, {"f": function, "c": coroutine}, isolation="mixed", shutdown_timeout=0.1)
        with Running(worker) as running:
            assert begun.acquire(timeout=30)
            assert begun.acquire(timeout=30)
            worker.stop()
            asked = time.monotonic()
            counts = running.end()
            assert time.monotonic() - asked < 10
        go_on.set()
        assert (counts.released, counts.abandoned) == (1, 1)
        assert store.get(ids["c"]).state is JobState.READY
        assert store.get(ids["f"]).state is JobState.IN_FLIGHT


def test_inside_a_running_loop_a_mixed_app_drains(memory: Conquiet) -> None:
    loops: list[asyncio.AbstractEventLoop] = []

    @memory.task
    async def coroutine() -> None:
        loops.append(asyncio.get_running_loop())

    @memory.task
    def plain() -> None: ...

    async def main() -> None:
        for task in (coroutine, plain):
            task.enqueue()
        assert memory.drain().succeeded == 2
        for task in (coroutine, plain):
            task.enqueue()
        assert (await memory.drain_async()).succeeded == 2
        assert loops[0] is not loops[1] is asyncio.get_running_loop()

    asyncio.run(main())


def test_it_needs_a_store_for_threads() -> None:
    async def main() -> None:
        async with await open_async_store("memory://") as store:
            with pytest.raises(JobConfigError, match="isolation 'mixed' needs a store made by open_store"):
                JobWorker(store, print, queues="q", isolation="mixed")

    asyncio.run(main())
