"""Many producers and consumers on the real clock: every item once, and no thread left asleep."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from conquiet.flow import Signal
from conquiet.local import PriorityDelayQueue, QueueSettings
from tests.campaign import campaign_size

LARGE = QueueSettings(max_in_memory=10**6, warn_depth=10**6)
LABELS = ("high", "normal", "low")


@pytest.fixture(autouse=True)
def _restless() -> Iterator[None]:
    """Threads switch as often as possible."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def start(*works: object) -> list[threading.Thread]:
    threads = [threading.Thread(target=work, daemon=True) for work in works]  # type: ignore[arg-type]
    for thread in threads:
        thread.start()
    return threads


def join(threads: list[threading.Thread], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    assert not any(thread.is_alive() for thread in threads), "a thread was never woken"


@pytest.mark.clause("W-06", "W-07")
@pytest.mark.campaign
def test_everything_is_delivered_once_and_every_wait_ends() -> None:
    """Eight producers, eight consumers without time limits: after one lost wake-up the last item is never taken."""
    queue = PriorityDelayQueue(LARGE)
    each = campaign_size(20_000)
    taken: list[list[int]] = [[] for _ in range(8)]

    def produce(number: int) -> None:
        chance = random.Random(number)
        for job in range(number * each, (number + 1) * each):
            delay = chance.choice((0.0, 0.0, chance.uniform(0, 0.003)))
            queue.enqueue(job, chance.choice(LABELS), delay)

    def consume(mine: list[int]) -> None:
        while (item := queue.dequeue()) is not None:
            mine.append(item.job)

    consumers = start(*[lambda mine=mine: consume(mine) for mine in taken])
    join(start(*[lambda number=number: produce(number) for number in range(8)]))
    queue.shutdown()
    join(consumers)
    assert sorted(job for mine in taken for job in mine) == list(range(8 * each))


@pytest.mark.clause("W-02", "W-06")
@pytest.mark.campaign
def test_no_wake_up_is_lost_while_waiters_come_and_go() -> None:
    """One item at a time, and the next only when it was taken: nothing later can repair a lost wake-up.

    Some waiters give up after a moment, so that the one that watches the time is often gone.
    """
    queue = PriorityDelayQueue(LARGE)
    rounds = campaign_size(20_000)
    taken = threading.Semaphore(0)
    leaving = threading.Event()

    def patient() -> None:
        while queue.dequeue() is not None:
            taken.release()

    def restless(number: int) -> None:
        chance = random.Random(number)
        while not leaving.is_set():
            if queue.dequeue(timeout=chance.choice((0.0, 0.0002, 0.001))) is not None:
                taken.release()

    def stopped(number: int) -> None:
        """Waits until a signal that is about to be set."""
        while not leaving.is_set():
            stop = Signal()
            timer = threading.Timer(0.002, stop.set)
            timer.start()
            if queue.dequeue(stop=stop) is not None:
                taken.release()
            timer.cancel()
            timer.join()

    threads = start(
        patient, patient, patient, *[lambda n=n: restless(n) for n in range(3)], lambda: stopped(0)
    )
    chance = random.Random(0)
    lost = None
    for round_ in range(rounds):
        queue.enqueue(round_, delay_seconds=chance.choice((0.0, 0.0, 0.0005, chance.uniform(0, 0.002))))
        if not taken.acquire(timeout=20):
            lost = round_
            break
    leaving.set()
    queue.shutdown()
    assert lost is None, f"item {lost} was never taken"
    join(threads)


@pytest.mark.clause("W-06")
def test_a_waiting_queue_takes_no_time() -> None:
    """Waiting, for an item or for a time, is sleeping, not polling."""
    queue = PriorityDelayQueue()
    queue.enqueue("far away", delay_seconds=3600)
    threads = start(*[lambda: queue.dequeue(timeout=1.0)] * 8)
    before = time.thread_time(), time.process_time()
    join(threads, 30)
    mine = time.thread_time() - before[0]
    assert time.process_time() - before[1] - mine < 0.2  # of 8 seconds of waiting


@pytest.mark.clause("W-06")
def test_a_delayed_item_comes_at_its_time_and_not_before() -> None:
    queue = PriorityDelayQueue()
    late = []
    for _ in range(20):
        begun = time.monotonic()
        queue.enqueue("job", delay_seconds=0.02)
        assert queue.dequeue() is not None
        late.append(time.monotonic() - begun - 0.02)
    assert min(late) >= 0
    assert sorted(late)[10] < 0.25  # half of them as punctual as a busy machine allows
