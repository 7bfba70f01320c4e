"""A worker without work: it wakes immediately when there is some, and uses almost no CPU until then."""

from __future__ import annotations

import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any

import psycopg
import pytest

from conquiet.flow.threads import THREADS
from conquiet.jobs import Job, JobStore, JobWorker, open_store
from tests.integration.jobs.background import Running, until
from tests.integration.jobs.processes import Program

Start = Callable[[JobWorker], Running]


async def nothing_async(job: Job) -> None:
    """Do nothing."""


@contextmanager
def producer(store: JobStore) -> Iterator[Callable[[], None]]:
    """Enqueues one job, from another process if the store allows that."""
    if store.capabilities.shared:
        with Program("produce", dsn=store.dsn) as program:
            yield program.tell
    else:

        def tell() -> None:
            store.enqueue("q", {"at": time.time()})

        yield tell


@pytest.mark.parametrize("isolation", ["thread", "async"])
def test_an_idle_worker_starts_a_new_job_at_once(
    store: JobStore, start: Start, isolation: str, capsys: pytest.CaptureFixture[str]
) -> None:
    latencies: list[float] = []

    def handle(job: Job) -> None:
        latencies.append(time.time() - job.payload["at"])

    async def handle_async(job: Job) -> None:
        handle(job)

    def handled(count: int) -> bool:
        return len(latencies) == count

    start(
        JobWorker(store, handle if isolation == "thread" else handle_async, queues="q", isolation=isolation)
    )
    with producer(store) as produce:
        for number in range(1, 10):
            produce()
            until(partial(handled, number))
            time.sleep(0.06)  # it has settled that, found nothing else, and waits
    median = statistics.median(latencies[1:])
    with capsys.disabled():
        name = store.capabilities.name
        print(
            f"\n  woken, {name}, {isolation}: median {median * 1e3:.1f} ms, {max(latencies[1:]) * 1e3:.1f} at most"
        )
    assert median < 0.15


@pytest.mark.parametrize("isolation", ["thread", "async"])
def test_a_delayed_job_starts_when_it_is_due(store: JobStore, start: Start, isolation: str) -> None:
    """Also one that was delayed after the worker began to wait."""
    latencies: list[float] = []

    def handle(job: Job) -> None:
        latencies.append(time.time() - job.payload["due"])

    async def handle_async(job: Job) -> None:
        handle(job)

    def handled(count: int) -> bool:
        return len(latencies) == count

    start(
        JobWorker(store, handle if isolation == "thread" else handle_async, queues="q", isolation=isolation)
    )
    time.sleep(0.1)
    for delay in (0.3, 0.15):
        store.enqueue("q", {"due": time.time() + delay}, delay=delay)
    until(lambda: len(latencies) == 2)
    assert min(latencies) > -0.01
    assert max(latencies) < 0.2


def test_idle_workers_hardly_work(store: JobStore, start: Start) -> None:
    """One on threads and one on asyncio, together.

    The best of some windows counts: whatever else the process does in one of them (a full garbage collection, say) only adds,
    and workers that poll do so in each.
    """
    start(JobWorker(store, lambda job: None, queues="q"))
    start(JobWorker(store, nothing_async, queues="q", isolation="async"))
    time.sleep(0.3)
    windows: list[tuple[float, float]] = []
    while len(windows) < 6:
        statements = _transactions(store)
        began, worked = time.monotonic(), time.process_time()
        time.sleep(1.5)
        worked, lasted = time.process_time() - worked, time.monotonic() - began
        windows.append((worked / lasted, (_transactions(store) - statements) / lasted))
        # Each makes two transactions every two seconds, in case a wake-up was missed; the query for this figure counts too.
        if windows[-1][0] < 2 * 0.03 and windows[-1][1] < 12:
            return
    pytest.fail(f"shares of a core and transactions a second in each window: {windows}")


def _transactions(store: JobStore) -> int:
    if store.capabilities.name != "postgresql":
        return 0
    with psycopg.connect(store.dsn, autocommit=True) as connection:
        connection.execute("SELECT pg_stat_force_next_flush()")
        row = connection.execute(
            "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()"
        ).fetchone()
    return int(row[0])


@pytest.mark.parametrize("timeout", [None, 30.0])
@pytest.mark.parametrize("isolation", ["thread", "async"])
def test_jobs_are_not_given_threads_of_their_own(
    memory: JobStore, isolation: str, timeout: float | None
) -> None:
    def drain(jobs: int) -> int:
        memory.enqueue_many("q", [{}] * jobs)
        handler = (lambda job: None) if isolation == "thread" else nothing_async
        worker = JobWorker(memory, handler, queues="q", isolation=isolation, execution_timeout=timeout)
        before = THREADS.created
        assert worker.run_until_idle().succeeded == jobs
        return THREADS.created - before

    drain(20)  # starts as many threads as it needs
    assert drain(2_000) <= 8


def test_no_stop_is_slept_through(memory: JobStore) -> None:
    """stop() at every single line of the fetcher: after a lost wake-up the worker would end two seconds later."""
    for line in range(1, 40):
        worker = JobWorker(memory, lambda job: None, queues="q", concurrency=1)
        reached = _StopAt(worker, line)
        thread = threading.Thread(target=reached.run, daemon=True)
        thread.start()
        if not reached.stopped.wait(0.3):
            worker.stop()
        asked = time.monotonic()
        thread.join(5)
        assert time.monotonic() - asked < 1.0, f"stop() at {reached.where} was slept through"
        if not reached.where:
            assert line > 8
            return


class _StopAt:
    """Runs a worker, and calls its stop() when the fetcher reaches its nth line."""

    def __init__(self, worker: JobWorker, line: int) -> None:
        self._worker = worker
        self._left = line
        self.stopped = threading.Event()
        self.where = ""

    def run(self) -> None:
        sys.settrace(self._trace)
        self._worker.run()

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_code.co_name != "_fetch":
            return self._trace if frame.f_code.co_filename.endswith("working.py") else None
        if event == "line" and self._left > 0:
            self._left -= 1
            if self._left == 0:
                self.where = f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
                self._worker.stop()
                self.stopped.set()
        return self._trace


@pytest.mark.clause("J-04")
@pytest.mark.parametrize("isolation", ["thread", "async"])
def test_what_others_have_locked_at_the_moment_is_not_taken_for_nothing(
    clean_postgres: str, isolation: str
) -> None:
    """Claims skip locked rows; `run_until_idle` waits for them."""
    handler = (lambda job: None) if isolation == "thread" else nothing_async
    with (
        open_store(clean_postgres) as store,
        psycopg.connect(clean_postgres) as other,
        ThreadPoolExecutor(1) as beside,
    ):
        store.enqueue_many("q", [{}] * 3)
        other.execute("SELECT FROM conquiet_jobs FOR UPDATE")
        running = beside.submit(JobWorker(store, handler, queues="q", isolation=isolation).run_until_idle)
        time.sleep(0.3)
        assert not running.done()
        other.rollback()
        assert running.result(10).succeeded == 3
