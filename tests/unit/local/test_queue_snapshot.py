"""Inspecting the queue, and emptying it."""

from __future__ import annotations

import signal
import sys
import threading

import pytest

from conquiet.local import PriorityDelayQueue, QueueSettings
from conquiet.testing import ManualClock
from tests.unit.local.taking import NotedClock, Taker, wait_for


@pytest.mark.clause("W-10")
def test_it_counts_what_is_ready_and_what_is_delayed() -> None:
    clock = ManualClock()
    queue = PriorityDelayQueue(clock=clock)
    assert queue.snapshot() == {"depth": 0, "ready": 0, "scheduled": 0, "shutdown": False}
    queue.enqueue(1)
    queue.enqueue(2, delay_seconds=5)
    queue.enqueue(3, "low", delay_seconds=9)
    assert queue.snapshot() == {"depth": 3, "ready": 1, "scheduled": 2, "shutdown": False}
    clock.advance(5)
    assert queue.snapshot() == {"depth": 3, "ready": 2, "scheduled": 1, "shutdown": False}
    queue.dequeue()
    queue.shutdown()
    assert queue.snapshot() == {"depth": 2, "ready": 1, "scheduled": 1, "shutdown": True}
    assert queue.depth == 2


@pytest.mark.clause("W-10")
def test_the_numbers_fit_together_while_others_work() -> None:
    """Producers and consumers run at full speed: every snapshot shows a state that is possible."""
    queue = PriorityDelayQueue(QueueSettings(max_in_memory=10**6, warn_depth=10**6))
    total, threads = 4_000, []
    wrong: list[object] = []
    done = threading.Event()

    def produce() -> None:
        for number in range(total):
            queue.enqueue(number, ("high", "normal", "low")[number % 3], delay_seconds=(number % 2) * 0.001)

    def consume() -> None:
        for _ in range(total):
            queue.dequeue()

    def look() -> None:
        while not done.is_set():
            seen = queue.snapshot()
            fits = (
                seen["depth"] == seen["ready"] + seen["scheduled"]
                and min(seen["ready"], seen["scheduled"]) >= 0
            )
            if not fits or seen["depth"] > 2 * total:
                wrong.append(seen)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [
            threading.Thread(target=work, daemon=True) for work in (produce, produce, consume, consume)
        ]
        looking = threading.Thread(target=look, daemon=True)
        for thread in [*threads, looking]:
            thread.start()
        for thread in threads:
            thread.join(60)
    finally:
        sys.setswitchinterval(before)
        done.set()
    looking.join(10)
    assert not any(thread.is_alive() for thread in threads)
    assert wrong == []
    assert queue.snapshot()["depth"] == 0


@pytest.mark.clause("W-11")
def test_purge_clears_what_is_ready_and_what_is_delayed() -> None:
    clock = ManualClock()
    queue = PriorityDelayQueue(clock=clock)
    for job in range(10):
        queue.enqueue(job, delay_seconds=job % 2)
    clock.advance(1)
    queue.enqueue("delayed", delay_seconds=60)
    assert queue.purge() == 11
    assert queue.snapshot() == {"depth": 0, "ready": 0, "scheduled": 0, "shutdown": False}
    clock.advance(1000)
    assert queue.dequeue(block=False) is None
    assert queue.purge() == 0
    assert queue.enqueue("new").seq == 11  # numbering goes on: two items never share a number
    assert queue.dequeue().job == "new"


@pytest.mark.clause("W-11")
def test_who_waited_for_a_purged_item_waits_for_the_next() -> None:
    clock = NotedClock()
    queue = PriorityDelayQueue(clock=clock)
    queue.enqueue("purged", delay_seconds=10)
    taker = Taker(queue)
    clock.wait_for_sleepers(1)
    queue.purge()
    wait_for(lambda: clock.waits == [10, None])
    clock.wait_for_sleepers(1)
    queue.enqueue("kept", delay_seconds=20)
    wait_for(lambda: clock.waits == [10, None, 20])
    clock.wait_for_sleepers(1)
    clock.advance(20)
    assert taker.job() == "kept"


@pytest.mark.clause("W-10")
def test_a_snapshot_that_finds_items_due_tells_those_that_wait() -> None:
    clock = ManualClock()
    queue = PriorityDelayQueue(clock=clock)
    takers = [Taker(queue), Taker(queue)]
    clock.wait_for_sleepers(2)
    queue.enqueue("a", delay_seconds=10)
    queue.enqueue("b", delay_seconds=10)
    wait_for(lambda: queue._waiters._timekeeper is not None)
    clock.wait_for_sleepers(2)
    clock.advance(10)
    queue.snapshot()
    assert {taker.job() for taker in takers} == {"a", "b"}


def test_a_signal_handler_may_call_it_on_top_of_the_thread_that_holds_the_lock() -> None:
    queue = PriorityDelayQueue()
    before = signal.signal(signal.SIGUSR1, lambda *_: queue.shutdown())
    try:
        with queue._lock:
            signal.raise_signal(signal.SIGUSR1)
            assert queue.snapshot()["shutdown"]
    finally:
        signal.signal(signal.SIGUSR1, before)
