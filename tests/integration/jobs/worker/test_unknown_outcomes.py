"""Connections cut during a change: the worker finds out whether it happened; nothing is lost or counted twice."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from conquiet.jobs import Job, JobContext, JobState, JobWorker, RetrySchedule, WorkerCounts, open_store
from tests.integration.jobs.background import Running, until
from tests.integration.jobs.effects import Effects, insert, insert_async
from tests.integration.jobs.gate import Gate

Start = Callable[[JobWorker], Running]
pytestmark = pytest.mark.clause("J-23", "J-06")
QUICK = RetrySchedule(max_retries=3, base_seconds=0.01, max_seconds=0.01)
either = pytest.mark.parametrize("lost", ["statement", "answer"])
both = pytest.mark.parametrize("isolation", ["thread", "async"])


class Run:
    """One job, run by a worker whose connections go through a gate."""

    def __init__(self, dsn: str, text: str, lost: str, isolation: str, handler: Callable[..., Any]) -> None:
        calls: list[int] = []

        def handle(job: Job, context: JobContext) -> None:
            calls.append(context.version)
            handler(job, context)

        async def handle_async(job: Job, context: JobContext) -> None:
            calls.append(context.version)
            if handler is insert:
                await insert_async(job, context)
            else:
                await asyncio.to_thread(handler, job, context)

        self.calls = calls
        with open_store(dsn, retry=QUICK) as direct, Gate(dsn, text, lost) as gate:
            job = direct.enqueue("q", {"n": 1})
            with open_store(gate.dsn, retry=QUICK) as store:
                worker = JobWorker(
                    store,
                    handle if isolation == "thread" else handle_async,
                    queues="q",
                    isolation=isolation,
                    lease_ttl=0.6,
                )
                self.counts: WorkerCounts = worker.run_until_idle(wait_for_delayed=True)
            assert gate.struck.is_set()
            found = direct.get(job.id)
            assert found is not None
            assert found.state is JobState.SUCCEEDED
            self.outcomes = [attempt.outcome for attempt in found.attempts]


def nothing(job: Job, context: JobContext) -> None:
    """Do nothing."""


@either
@both
def test_an_ack(clean_postgres: str, isolation: str, lost: str) -> None:
    run = Run(clean_postgres, "state = 'Succeeded'", lost, isolation, nothing)
    assert (run.calls, run.outcomes) == ([1], ["succeeded"])
    assert (run.counts.succeeded, run.counts.lost) == (1, 0)


@either
@both
def test_a_nack(clean_postgres: str, isolation: str, lost: str) -> None:
    def fail_once(job: Job, context: JobContext) -> None:
        if context.version == 1:
            raise ValueError("once")

    run = Run(clean_postgres, "retries = job.retries + done.retry", lost, isolation, fail_once)
    assert (run.calls, run.outcomes) == ([1, 2], ["failed", "succeeded"])
    assert (run.counts.failed, run.counts.succeeded, run.counts.lost) == (1, 1, 0)


@either
@both
@pytest.mark.clause("J-30")
def test_the_commit_of_a_transaction_with_its_ack(clean_postgres: str, isolation: str, lost: str) -> None:
    with open_store(clean_postgres) as store:
        effects = Effects(store)
    run = Run(clean_postgres, "COMMIT", lost, isolation, insert)
    assert effects.numbers() == [1]
    if lost == "answer":
        assert (run.calls, run.outcomes) == ([1], ["succeeded"])
        assert (run.counts.succeeded, run.counts.lost) == (1, 0)
    else:
        assert (run.calls, run.outcomes) == ([1, 2], ["lease expired", "succeeded"])
        assert (run.counts.succeeded, run.counts.lost) == (1, 1)


@either
@both
def test_a_claim(clean_postgres: str, isolation: str, lost: str) -> None:
    """Leased to a worker that does not know it: the lease expires."""
    run = Run(clean_postgres, "SKIP LOCKED", lost, isolation, nothing)
    version = 1 if lost == "statement" else 2
    assert run.calls == [version]
    assert run.outcomes == ["lease expired"] * (version - 1) + ["succeeded"]
    assert (run.counts.claimed, run.counts.succeeded) == (1, 1)


@either
def test_a_heartbeat(clean_postgres: str, lost: str) -> None:
    """It is sent again before the lease ends."""
    run = Run(clean_postgres, "held (id, token", lost, "thread", lambda job, context: time.sleep(1.0))
    assert (run.calls, run.outcomes, run.counts.lost) == ([1], ["succeeded"], 0)


@either
def test_a_release(clean_postgres: str, start: Start, lost: str) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def handle(job: Job) -> None:
        begun.set()
        assert go_on.wait(30)

    with open_store(clean_postgres) as direct, Gate(clean_postgres, "released", lost) as gate:
        ids = direct.enqueue_many("q", [{}] * 4)
        with open_store(gate.dsn) as store:
            worker = JobWorker(store, handle, queues="q", concurrency=1, prefetch=3)
            running = start(worker)
            assert begun.wait(20)
            worker.stop()
            until(lambda: direct.stats("q")["q"].ready == 3)
            go_on.set()
            counts = running.end()
        assert gate.struck.is_set()
        assert (counts.succeeded, counts.released, counts.lost) == (1, 3, 0)
        assert [[a.outcome for a in direct.get(i).attempts] for i in ids] == [["succeeded"]] + [
            ["released"]
        ] * 3


@contextmanager
def cutting(dsn: str) -> Iterator[list[int]]:
    """Cut connections to the database every few milliseconds: those that commit, and now and then all."""
    cuts: list[int] = []
    enough = threading.Event()
    others = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid() "
    )
    committing = "AND (query LIKE '%Succeeded%' OR query ILIKE 'commit%') AND state <> 'idle'"

    def cut() -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            while not enough.wait(0.03):
                everybody = len(cuts) % 8 == 7
                cuts.append(len(connection.execute(others + committing * (not everybody)).fetchall()))

    thread = threading.Thread(target=cut)
    thread.start()
    try:
        yield cuts
    finally:
        enough.set()
        thread.join()


def pause(job: Job) -> None:
    time.sleep(0.002)


async def pause_async(job: Job) -> None:
    await asyncio.sleep(0.002)


@pytest.mark.parametrize(("isolation", "transactional"), [("thread", True), ("async", False)])
def test_under_load_again_and_again(
    clean_postgres: str, isolation: str, transactional: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)  # it logs a lot here
    jobs = 200 if transactional else 1_000
    retry = RetrySchedule(max_retries=100, base_seconds=0.0)  # a cut may fail a handler in its own statement
    with open_store(clean_postgres, retry=retry, max_lease_expiries=1_000) as store:
        effects = Effects(store)
        ids: list[str] = []
        thread, coroutine = (insert, insert_async) if transactional else (pause, pause_async)
        worker = JobWorker(
            store,
            thread if isolation == "thread" else coroutine,
            queues="q",
            isolation=isolation,
            lease_ttl=1.0,
        )
        rounds, cut = [], 0
        while cut <= 8:  # a busy machine may make few cuts in one round
            ids += store.enqueue_many("q", [{"n": n} for n in range(len(ids), len(ids) + jobs)])
            with cutting(clean_postgres) as cuts:
                rounds.append(worker.run_until_idle(wait_for_delayed=True))
            cut += sum(cuts)
        for job in map(store.get, ids):
            assert job.state is JobState.SUCCEEDED
            assert [attempt.outcome for attempt in job.attempts].count("succeeded") == 1
        assert sum(counts.succeeded for counts in rounds) == len(ids)
        for counts in rounds:
            assert counts.claimed == counts.succeeded + counts.failed + counts.lost + counts.released
        if transactional:
            assert effects.numbers() == list(range(len(ids)))
        else:
            assert not any(counts.failed for counts in rounds)
