"""The in-process queue against the standard library's, and a million delayed items due at the same time."""

from __future__ import annotations

import gc
import queue
import random
import time
from itertools import count as counter

from bench.harness import Bench, timed
from conquiet.local import CircuitBreaker, PriorityDelayQueue, QueueSettings, Worker
from conquiet.reconcile import Metrics, classify
from conquiet.testing import ManualClock

BENCH = Bench("local")
LARGE = QueueSettings(max_in_memory=10_000_000, warn_depth=10_000_000)
LABELS = ("high", "normal", "low")
VALUES = (0, 5, 10)
DUE_AT_ONCE = 1_000_000


def queue_raw(count: int) -> float:
    """The obvious code with `queue.PriorityQueue`: priorities and a number to break ties, no delays, no times."""
    items: queue.PriorityQueue[tuple[int, int, object]] = queue.PriorityQueue()
    numbers = counter()

    def work() -> None:
        for number in range(count):
            items.put((VALUES[number % 3], next(numbers), number))
        for _ in range(count):
            items.get()

    return timed(work)


def queue_ours(count: int) -> float:
    items = PriorityDelayQueue(LARGE)

    def work() -> None:
        for number in range(count):
            items.enqueue(number, LABELS[number % 3])
        for _ in range(count):
            items.dequeue()

    return timed(work)


def delayed_ours(count: int) -> float:
    clock = ManualClock()
    items = PriorityDelayQueue(LARGE, clock)
    delays = [random.Random(count).uniform(1, 60) for _ in range(count)]

    def work() -> None:
        for number in range(count):
            items.enqueue(number, LABELS[number % 3], delays[number])
        clock.advance(60)
        for _ in range(count):
            items.dequeue()

    return timed(work)


def delayed_raw(count: int) -> float:
    """The same with two heaps: by due time, then, when due, by priority."""
    ready: queue.PriorityQueue[tuple[int, int, object]] = queue.PriorityQueue()
    scheduled: queue.PriorityQueue[tuple[float, int, int, object]] = queue.PriorityQueue()
    delays = [random.Random(count).uniform(1, 60) for _ in range(count)]

    def work() -> None:
        for number in range(count):
            scheduled.put((delays[number], VALUES[number % 3], number, number))
        for _ in range(count):
            _, value, seq, job = scheduled.get()
            ready.put((value, seq, job))
        for _ in range(count):
            ready.get()

    return timed(work)


def worker_ours(count: int) -> float:
    items = PriorityDelayQueue(LARGE)
    for number in range(count):
        items.enqueue(number)
    items.shutdown()
    worker = Worker(items, lambda job: None)

    def work() -> None:
        worker.start()
        worker.join()

    return timed(work)


def breaker_ours(count: int) -> None:
    breaker = CircuitBreaker()
    for _ in range(count):
        breaker.allow()
        breaker.record_success()


def classify_reports(count: int) -> float:
    """Compute verdicts on reports of every status, on one core."""
    chance = random.Random(1)
    reports = [
        (
            Metrics(*(round(seen * chance.uniform(0.7, 1.6)) for seen in (1000, 100, 10))),
            Metrics(1000, 100, None if chance.random() < 0.1 else 10),
            chance.uniform(0, 48),
        )
        for _ in range(1_000)
    ]

    def work() -> None:
        for _ in range(count // len(reports)):
            for claimed, observed, hours in reports:
                classify(claimed, observed, hours)

    return timed(work)


def promotion_pause_ms() -> float:
    """Return the longest single dequeue while a million items that became due together are taken.

    Measured in CPU time: a dequeue does not wait, and the load of other processes is not the queue's pause.
    """
    clock = ManualClock()
    items = PriorityDelayQueue(LARGE, clock)
    chance = random.Random(1)
    for number in range(DUE_AT_ONCE):
        items.enqueue(number, LABELS[number % 3], chance.uniform(1, 60))
    clock.advance(60)
    gc.collect()
    gc.freeze()  # the garbage collector's pauses for the objects above are not the queue's
    try:
        longest = 0.0
        for _ in range(DUE_AT_ONCE):
            begin = time.thread_time()
            items.dequeue()
            longest = max(longest, time.thread_time() - begin)
    finally:
        gc.unfreeze()
    return longest * 1000


BENCH.compare("enqueue_dequeue", unit="items", count=20_000, ours=queue_ours, raw=queue_raw)
BENCH.compare("delayed", unit="items", count=20_000, ours=delayed_ours, raw=delayed_raw)
BENCH.compare("worker", unit="jobs", count=20_000, ours=worker_ours)
BENCH.compare("breaker", unit="calls", count=100_000, ours=breaker_ours)
BENCH.compare("classify", unit="reports", count=100_000, ours=classify_reports)
BENCH.figure("promotion_pause_ms", unit="ms", measure=promotion_pause_ms)
