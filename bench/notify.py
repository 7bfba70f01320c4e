"""What notifications cost those who enqueue: jobs one by one, by 16 threads and by 16 processes, against `notify=False`.

Nobody waits for the jobs, as in a queue whose workers are busy; a worker of another queue is idle.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import count as numbers
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier

from bench.harness import Bench, timed
from bench.jobs import PAYLOAD, QUEUE, nothing
from conquiet.embedded import PostgresServer
from conquiet.jobs import JobStore, JobWorker, open_store

BENCH = Bench("notify")
PRODUCERS = 16
SPAWN = multiprocessing.get_context("spawn")  # a store of its own for each, as in a program of its own

server = BENCH.needs(PostgresServer)  # fsync on
fresh = numbers()


def enqueue(store: JobStore, notify: bool, count: int) -> None:
    for _ in range(count):
        store.enqueue(QUEUE, PAYLOAD, notify=notify)


@contextmanager
def store_with_idle_worker() -> Iterator[JobStore]:
    with open_store(server().create_database(f"notify_{next(fresh)}"), max_connections=PRODUCERS) as store:
        worker = JobWorker(store, nothing, queues="other")
        with ThreadPoolExecutor(1) as beside:
            beside.submit(worker.run)
            try:
                yield store
            finally:
                worker.stop()


def threads(notify: bool, count: int) -> float:
    with store_with_idle_worker() as store, ThreadPoolExecutor(PRODUCERS) as pool:
        share = [count // PRODUCERS] * PRODUCERS
        list(pool.map(partial(enqueue, store, notify), [10] * PRODUCERS))  # connected
        return timed(lambda: list(pool.map(partial(enqueue, store, notify), share)))


def produce(dsn: str, notify: bool, count: int, ready: Barrier, ends: Queue[float]) -> None:
    with open_store(dsn) as store:
        enqueue(store, notify, 10)  # connected
        ready.wait(60)
        enqueue(store, notify, count)
        ends.put(time.monotonic())


def processes(notify: bool, count: int) -> float:
    with store_with_idle_worker() as store:
        ready, ends = SPAWN.Barrier(PRODUCERS + 1), SPAWN.Queue()
        values = (store.dsn, notify, count // PRODUCERS, ready, ends)
        producers = [SPAWN.Process(target=produce, args=values) for _ in range(PRODUCERS)]
        for producer in producers:
            producer.start()
        ready.wait(60)
        begun = time.monotonic()
        seconds = max(ends.get(timeout=300) for _ in producers) - begun
        for producer in producers:
            producer.join()
        return seconds


for name, work in (("threads", threads), ("processes", processes)):
    BENCH.compare(name, unit="jobs", count=8_000, ours=partial(work, True), silent=partial(work, False))
