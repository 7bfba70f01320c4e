"""A handler's effect on the store's own database, and its ack: committed together or not at all."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conquiet.errors import AbandonedCallError
from conquiet.flow.isolation import THREAD_CALLS
from conquiet.jobs import Job, JobContext, JobState, JobStore, JobWorker, open_store
from tests.integration.jobs.background import Running, until
from tests.integration.jobs.effects import Effects, handler_in, insert_async
from tests.integration.jobs.handlers import words
from tests.integration.jobs.processes import Program

Start = Callable[[JobWorker], Running]
pytestmark = pytest.mark.clause("J-30")
both = pytest.mark.parametrize("isolation", ["thread", "async"])


@both
def test_effects_and_acks_are_committed_together(durable: JobStore, isolation: str) -> None:
    effects = Effects(durable)
    ids = durable.enqueue_many("q", [{"n": n} for n in range(40)])
    worker = JobWorker(durable, handler_in(isolation), queues="q", isolation=isolation)
    began = time.monotonic()
    counts = worker.run_until_idle()
    assert time.monotonic() - began < 8  # no one waited for a lock that its owner could not release
    assert (counts.succeeded, counts.failed, counts.lost) == (40, 0, 0)
    assert effects.numbers() == list(range(40))
    assert {durable.get(job_id).state for job_id in ids} == {JobState.SUCCEEDED}
    assert effects.left_open() == 0


@both
def test_when_the_handler_raises_after_its_effect_there_is_none(durable: JobStore, isolation: str) -> None:
    effects = Effects(durable)
    tries: list[int] = []

    def fail_twice(job: Job, context: JobContext) -> None:
        tries.append(context.version)
        if len(tries) < 3:
            raise ValueError("after the effect, before the ack")

    job = durable.enqueue("q", {"n": 7})
    worker = JobWorker(durable, handler_in(isolation, fail_twice), queues="q", isolation=isolation)
    counts = worker.run_until_idle(wait_for_delayed=True)
    assert (counts.failed, counts.succeeded, tries) == (2, 1, [1, 2, 3])
    assert effects.numbers() == [7]
    assert [a.outcome for a in durable.get(job.id).attempts] == ["failed", "failed", "succeeded"]
    assert effects.left_open() == 0


@both
def test_when_the_lease_was_lost_meanwhile_the_effect_is_rolled_back(
    durable: JobStore, isolation: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Lost before the transaction began: on SQLite no one can take a job while the transaction lasts."""
    effects = Effects(durable)
    taken: list[Job] = []

    def lose(job: Job) -> None:
        durable.release(job)
        taken.extend(durable.claim("q"))

    def handle(job: Job, context: JobContext) -> None:
        lose(job)
        inner(job, context)

    async def handle_async(job: Job, context: JobContext) -> None:
        lose(job)
        await inner(job, context)

    inner = handler_in(isolation)
    durable.enqueue("q", {"n": 1})
    handler = handle if isolation == "thread" else handle_async
    worker = JobWorker(durable, handler, queues="q", isolation=isolation, concurrency=1, prefetch=0)
    counts = worker.run_until_idle()
    assert (counts.lost, counts.succeeded) == (1, 0)
    assert effects.numbers() == []
    (other,) = taken
    durable.ack(other)  # its new holder is not disturbed
    assert "its result is discarded: ack of job" in caplog.text
    assert effects.left_open() == 0


@both
def test_killed_between_effect_and_commit_it_has_no_effect(
    durable: JobStore, start: Start, tmp_path: Path, isolation: str
) -> None:
    effects = Effects(durable)
    job = durable.enqueue("q", {"n": 5, "notes": str(tmp_path / "notes"), "seconds": 60})
    with Program(
        "work", dsn=durable.dsn, handler="effect", isolation=isolation, lease_ttl=0.4, concurrency=1
    ) as program:
        until(lambda: words(tmp_path / "notes"))
        program.kill()
    assert effects.numbers() == []
    start(JobWorker(durable, handler_in("thread"), queues="q"))
    until(lambda: durable.get(job.id).state is JobState.SUCCEEDED)
    assert effects.numbers() == [5]
    assert [a.outcome for a in durable.get(job.id).attempts] == ["lease expired", "succeeded"]


@both
def test_several_at_once_in_one_handler_get_the_same_connection(durable: JobStore, isolation: str) -> None:
    effects = Effects(durable)
    found: list[Any] = []

    def handle(job: Job, context: JobContext) -> None:
        threads = [threading.Thread(target=lambda: found.append(context.connection)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        context.connection.execute("INSERT INTO effects VALUES (1)")

    async def handle_async(job: Job, context: JobContext) -> None:
        found.extend(await asyncio.gather(*(context.get_connection() for _ in range(4))))
        await insert_async(job, context)

    durable.enqueue("q", {"n": 1})
    handler = handle if isolation == "thread" else handle_async
    assert JobWorker(durable, handler, queues="q", isolation=isolation).run_until_idle().succeeded == 1
    assert len(found) == 4
    assert len(set(map(id, found))) == 1
    assert effects.numbers() == [1]
    assert effects.left_open() == 0


@both
def test_a_long_transaction_keeps_its_lease(
    durable: JobStore, isolation: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Longer than the lease: PostgreSQL has heartbeats, on SQLite no one else can claim. No lease is lost."""
    effects = Effects(durable)
    durable.enqueue("q", {"n": 1})
    handler = handler_in(isolation, lambda job, context: time.sleep(1.0))
    worker = JobWorker(durable, handler, queues="q", isolation=isolation, lease_ttl=0.4)
    with caplog.at_level(logging.WARNING, "conquiet.jobs"):
        counts = worker.run_until_idle()
    assert (counts.succeeded, counts.lost, effects.numbers()) == (1, 0, [1])
    assert [record.getMessage() for record in caplog.records if record.name == "conquiet.jobs"] == []


def test_an_abandoned_thread_can_do_nothing_with_its_connection(durable: JobStore) -> None:
    """Past its time limit its transaction is taken away: it can neither write there nor begin another one."""
    effects = Effects(durable)
    go_on, ended = threading.Event(), threading.Event()
    refused: list[type[BaseException]] = []
    job = durable.enqueue("q", {"n": 1}, max_retries=0)

    def write_late(job: Job, context: JobContext) -> None:
        connection = context.connection
        go_on.wait(30)
        for attempt in (
            lambda: connection.execute("INSERT INTO effects VALUES (2)"),
            lambda: vars(JobContext)["connection"].fget(_fresh(context)),
        ):
            try:
                attempt()
            except Exception as error:
                refused.append(type(error))
        ended.set()

    worker = JobWorker(durable, handler_in("thread", write_late), queues="q", execution_timeout=0.3)
    assert worker.run_until_idle().failed == 1
    # Others use the store's connections meanwhile.
    durable.enqueue_many("other", [{"n": n} for n in (10, 11)])
    JobWorker(durable, handler_in("thread"), queues="other").run_until_idle()
    go_on.set()
    assert ended.wait(10)
    until(lambda: THREAD_CALLS.abandoned == 0)
    assert len(refused) == 2
    assert refused[1] is AbandonedCallError
    assert effects.numbers() == [10, 11]
    assert durable.get(job.id).attempts[0].category == "TIMEOUT"
    assert effects.left_open() == 0


def _fresh(context: JobContext) -> JobContext:
    context.transaction = None  # as if it had not asked yet
    return context


def test_a_handler_stuck_in_a_statement_does_not_hold_up_its_end(durable: JobStore) -> None:
    Effects(durable)
    endless = (
        "SELECT pg_sleep(60)"
        if durable.capabilities.name == "postgresql"
        else "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
    )
    job = durable.enqueue("q", {"n": 1}, max_retries=0)
    handler = handler_in("thread", lambda job, context: context.connection.execute(endless))
    began = time.monotonic()
    JobWorker(durable, handler, queues="q", execution_timeout=0.3).run_until_idle()
    assert time.monotonic() - began < 3
    assert durable.get(job.id).attempts[0].category == "TIMEOUT"
    until(lambda: THREAD_CALLS.abandoned == 0)  # the statement was interrupted
    Effects(durable)  # and it holds no lock


@both
def test_a_limit_reached_while_the_transaction_begins_is_kept(
    tmp_path: Path, start: Start, isolation: str
) -> None:
    """Another process holds SQLite's write lock: the handler does not go on when it is free; the transaction ends."""
    claimed, locked, ran_on = threading.Event(), threading.Event(), threading.Event()

    def handle(job: Job, context: JobContext) -> None:
        claimed.set()
        locked.wait(30)
        context.connection.execute("INSERT INTO effects VALUES (1)")
        ran_on.set()

    async def handle_async(job: Job, context: JobContext) -> None:
        claimed.set()
        await asyncio.to_thread(locked.wait, 30)
        await insert_async(job, context)
        await asyncio.sleep(0)
        ran_on.set()

    path = tmp_path / "jobs.db"
    with open_store(f"sqlite:///{path}") as store:
        effects = Effects(store)
        job = store.enqueue("q", {"n": 1}, max_retries=0)
        handler = handle if isolation == "thread" else handle_async
        start(JobWorker(store, handler, queues="q", isolation=isolation, execution_timeout=1.5, lease_ttl=30))
        assert claimed.wait(10)
        with Program("lock", path=str(path)):
            locked.set()
            time.sleep(1.7)
        failed = until(lambda: (found := store.get(job.id)).state is JobState.FAILED and found)
        assert failed.attempts[0].category == "TIMEOUT"
        until(lambda: THREAD_CALLS.abandoned == 0)
        assert not ran_on.is_set()
        assert effects.numbers() == []
        assert effects.left_open() == 0


@both
def test_the_memory_store_has_no_connection_and_says_so(memory: JobStore, isolation: str) -> None:
    job = memory.enqueue("q", {"n": 1}, max_retries=0)
    assert (
        JobWorker(memory, handler_in(isolation), queues="q", isolation=isolation).run_until_idle().failed == 1
    )
    failed = memory.get(job.id)
    assert (failed.attempts[0].error_type, failed.state) == ("JobConfigError", JobState.FAILED)
    assert "no connection is available: the store is in memory" in failed.error


def test_a_coroutine_is_told_to_await_its_connection(durable: JobStore) -> None:
    effects = Effects(durable)

    async def handle(job: Job, context: JobContext) -> None:
        context.connection.execute("INSERT INTO effects VALUES (1)")

    job = durable.enqueue("q", {}, max_retries=0)
    assert JobWorker(durable, handle, queues="q", isolation="async").run_until_idle().failed == 1
    assert durable.get(job.id).error == "in an event loop use: await context.get_connection()"
    assert effects.left_open() == 0
