"""Blocking: which thread waits how long; none is forgotten. All on a clock that the test moves."""

from __future__ import annotations

import threading

import pytest

from conquiet.clock import Parker
from conquiet.flow import Signal
from conquiet.local import PriorityDelayQueue
from tests.unit.local.taking import NotedClock, Taker, wait_for


@pytest.fixture
def clock() -> NotedClock:
    return NotedClock()


@pytest.fixture
def queue(clock: NotedClock) -> PriorityDelayQueue:
    return PriorityDelayQueue(clock=clock)


@pytest.mark.clause("W-06")
def test_an_empty_queue_waits_without_end_and_without_polling(
    queue: PriorityDelayQueue, clock: NotedClock
) -> None:
    taker = Taker(queue)
    clock.wait_for_sleepers(1)
    clock.advance(1_000_000)
    assert taker.waits
    queue.enqueue("job")
    assert taker.job() == "job"
    assert clock.waits == [None]  # one wait, without a time limit


@pytest.mark.clause("W-06")
def test_it_waits_exactly_until_the_next_item_is_due(queue: PriorityDelayQueue, clock: NotedClock) -> None:
    queue.enqueue("later", delay_seconds=100)
    queue.enqueue("sooner", delay_seconds=7.5)
    taker = Taker(queue)
    clock.wait_for_sleepers(1)
    clock.advance(7.25)
    assert taker.waits
    clock.advance(0.25)
    assert taker.job() == "sooner"
    assert clock.waits == [7.5]


@pytest.mark.clause("W-02", "W-06")
def test_an_item_that_is_due_earlier_shortens_the_wait(queue: PriorityDelayQueue, clock: NotedClock) -> None:
    queue.enqueue("in an hour", delay_seconds=3600)
    taker = Taker(queue)
    clock.wait_for_sleepers(1)
    queue.enqueue("in a minute", delay_seconds=60)
    wait_for(lambda: clock.waits == [3600, 60])
    clock.wait_for_sleepers(1)
    queue.enqueue("in two minutes", delay_seconds=120)  # due later: no thread is woken
    clock.advance(60)
    assert taker.job() == "in a minute"
    assert clock.waits == [3600, 60]


@pytest.mark.clause("W-02", "W-06")
def test_a_ready_item_goes_to_one_of_those_that_wait(queue: PriorityDelayQueue, clock: NotedClock) -> None:
    takers = [Taker(queue) for _ in range(4)]
    clock.wait_for_sleepers(4)
    queue.enqueue("only one")
    wait_for(lambda: sum(not taker.waits for taker in takers) == 1)
    clock.wait_for_sleepers(3)
    assert clock.waits == [None] * 4  # the others were not woken
    queue.shutdown()
    assert sorted(taker.job() or "" for taker in takers) == ["", "", "", "only one"]


@pytest.mark.clause("W-06")
def test_only_one_keeps_the_time_and_what_is_due_together_goes_to_as_many_as_wait(
    queue: PriorityDelayQueue, clock: NotedClock
) -> None:
    takers = [Taker(queue) for _ in range(5)]
    clock.wait_for_sleepers(5)
    for job in range(4):
        queue.enqueue(job, delay_seconds=10)
    wait_for(lambda: clock.waits == [None] * 5 + [10])
    clock.wait_for_sleepers(5)
    clock.advance(10)
    wait_for(lambda: sum(not taker.waits for taker in takers) == 4)
    queue.shutdown()
    assert sorted(-1 if taker.job() is None else taker.job() for taker in takers) == [-1, 0, 1, 2, 3]


@pytest.mark.clause("W-06")
def test_an_earlier_item_is_told_to_the_timekeeper_wherever_it_stands(
    queue: PriorityDelayQueue, clock: NotedClock
) -> None:
    takers = [Taker(queue) for _ in range(3)]
    clock.wait_for_sleepers(3)
    for number, delay in enumerate((100, 50, 25)):
        queue.enqueue(delay, delay_seconds=delay)
        wait_for(lambda number=number: len(clock.waits) == 4 + number)  # type: ignore[misc]
        clock.wait_for_sleepers(3)
    assert clock.waits == [None, None, None, 100, 50, 25]
    clock.advance(25)
    wait_for(lambda: sum(not taker.waits for taker in takers) == 1)
    queue.purge()
    queue.shutdown()
    assert [job for taker in takers if (job := taker.job()) is not None] == [25]


@pytest.mark.clause("W-06")
def test_who_leaves_without_having_kept_the_time_wakes_nobody(
    queue: PriorityDelayQueue, clock: NotedClock
) -> None:
    queue.enqueue("job", delay_seconds=10)
    timekeeper = Taker(queue)
    clock.wait_for_sleepers(1)
    others = [Taker(queue, timeout=4), Taker(queue, timeout=5)]
    clock.wait_for_sleepers(3)
    for _ in range(5):
        clock.advance(1)
    assert [other.result() for other in others] == [None, None]
    clock.advance(5)
    assert timekeeper.job() == "job"
    assert sorted(limit or 0 for limit in clock.waits) == [4, 5, 10]  # one wait each


@pytest.mark.clause("W-06")
def test_a_thread_that_is_slow_to_wake_holds_up_no_other(
    queue: PriorityDelayQueue, clock: NotedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first thread was notified and has not run yet: the next item wakes the second."""
    slow, go = [True], threading.Event()
    wait = clock.wait

    def held(parker: Parker, timeout: float | None) -> bool:
        woken = wait(parker, timeout)
        if slow and slow.pop():
            assert go.wait(10)
        return woken

    monkeypatch.setattr(clock, "wait", held)
    first = Taker(queue)
    clock.wait_for_sleepers(1)
    second = Taker(queue)
    clock.wait_for_sleepers(2)
    queue.enqueue("a")
    wait_for(lambda: not slow)
    queue.enqueue("b")
    assert second.job() == "a"
    assert first.waits
    go.set()
    assert first.job() == "b"


@pytest.mark.clause("W-06")
def test_when_the_timekeeper_leaves_with_an_item_another_keeps_the_time(
    queue: PriorityDelayQueue, clock: NotedClock
) -> None:
    first, second = Taker(queue), Taker(queue)
    clock.wait_for_sleepers(2)
    queue.enqueue("a", delay_seconds=10)
    queue.enqueue("b", delay_seconds=11)
    wait_for(lambda: clock.waits == [None, None, 10])
    clock.wait_for_sleepers(2)
    clock.advance(10)
    wait_for(lambda: clock.waits == [None, None, 10, 1])
    clock.wait_for_sleepers(1)
    clock.advance(1)
    assert {first.job(), second.job()} == {"a", "b"}


@pytest.mark.clause("W-06", "W-07")
def test_when_the_timekeeper_gives_up_another_keeps_the_time(
    queue: PriorityDelayQueue, clock: NotedClock
) -> None:
    queue.enqueue("job", delay_seconds=10)
    impatient = Taker(queue, timeout=4)
    clock.wait_for_sleepers(1)
    patient = Taker(queue)
    clock.wait_for_sleepers(2)
    assert clock.waits == [4, None]
    clock.advance(4)
    assert impatient.result() is None
    wait_for(lambda: clock.waits == [4, None, 6])
    clock.wait_for_sleepers(1)
    clock.advance(6)
    assert patient.job() == "job"


@pytest.mark.clause("W-06")
def test_when_the_timekeeper_is_interrupted_another_keeps_the_time(
    queue: PriorityDelayQueue, clock: NotedClock
) -> None:
    queue.enqueue("job", delay_seconds=10)
    interrupted = Taker(queue, timeout=4)
    clock.wait_for_sleepers(1)
    patient = Taker(queue)
    clock.wait_for_sleepers(2)
    clock.interrupt_next = True
    clock.advance(4)
    interrupted.end()
    assert isinstance(interrupted.error, KeyboardInterrupt)
    wait_for(lambda: clock.waits == [4, None, 6])
    clock.wait_for_sleepers(1)
    clock.advance(6)
    assert patient.job() == "job"


@pytest.mark.clause("W-06")
def test_who_is_interrupted_on_the_way_to_its_item_leaves_it_to_another(
    queue: PriorityDelayQueue, clock: NotedClock
) -> None:
    interrupted = Taker(queue)
    clock.wait_for_sleepers(1)
    other = Taker(queue)
    clock.wait_for_sleepers(2)
    clock.interrupt_next = True
    queue.enqueue("job")  # notifies the thread that has waited longest
    interrupted.end()
    assert isinstance(interrupted.error, KeyboardInterrupt)
    assert other.job() == "job"


@pytest.mark.clause("W-06")
def test_an_item_that_is_put_back_wakes_one_that_waits(queue: PriorityDelayQueue, clock: NotedClock) -> None:
    queue.enqueue("job")
    item = queue.dequeue()
    assert item is not None
    taker = Taker(queue)
    clock.wait_for_sleepers(1)
    queue.put_back(item)
    assert taker.result() is item


@pytest.mark.clause("W-07")
def test_none_at_the_time_limit(queue: PriorityDelayQueue, clock: NotedClock) -> None:
    queue.enqueue("too late", delay_seconds=5.5)
    taker = Taker(queue, timeout=5)
    clock.wait_for_sleepers(1)
    clock.advance(4.75)
    assert taker.waits
    clock.advance(0.25)
    assert taker.result() is None
    assert clock.waits == [5]
    assert queue.snapshot()["depth"] == 1


@pytest.mark.clause("W-07")
def test_an_item_that_is_due_at_the_time_limit_is_taken(queue: PriorityDelayQueue, clock: NotedClock) -> None:
    queue.enqueue("just in time", delay_seconds=5)
    taker = Taker(queue, timeout=5)
    clock.wait_for_sleepers(1)
    clock.advance(8)
    assert taker.job() == "just in time"


@pytest.mark.clause("W-07")
@pytest.mark.parametrize("options", [{"block": False}, {"timeout": 0}, {"timeout": -1}])
def test_without_time_to_wait_it_does_not_wait(
    queue: PriorityDelayQueue, clock: NotedClock, options: dict[str, float]
) -> None:
    assert queue.dequeue(**options) is None  # type: ignore[arg-type]
    queue.enqueue("job", delay_seconds=1)
    assert queue.dequeue(**options) is None  # type: ignore[arg-type]
    clock.advance(1)
    assert queue.dequeue(**options) is not None  # type: ignore[arg-type]
    assert clock.waits == []


@pytest.mark.clause("W-07")
def test_after_shutdown_delayed_items_are_still_delivered_when_due_and_then_none(
    queue: PriorityDelayQueue, clock: NotedClock
) -> None:
    queue.enqueue("delayed", delay_seconds=30)
    takers = [Taker(queue), Taker(queue), Taker(queue)]
    clock.wait_for_sleepers(3)
    queue.shutdown()
    wait_for(lambda: len(clock.waits) == 6)  # all have checked, and wait again
    clock.wait_for_sleepers(3)
    assert all(taker.waits for taker in takers)
    clock.advance(30)
    # The thread that takes it releases the others.
    assert sorted(taker.job() or "" for taker in takers) == ["", "", "delayed"]


@pytest.mark.clause("W-07")
def test_shutdown_of_an_empty_queue_ends_every_wait(queue: PriorityDelayQueue, clock: NotedClock) -> None:
    takers = [Taker(queue), Taker(queue, timeout=1000)]
    clock.wait_for_sleepers(2)
    queue.shutdown()
    assert [taker.result() for taker in takers] == [None, None]
    assert queue.dequeue() is None


@pytest.mark.clause("W-07")
def test_taking_the_last_item_after_shutdown_without_waiting_ends_the_waits_of_others(
    queue: PriorityDelayQueue, clock: NotedClock
) -> None:
    queue.enqueue("delayed", delay_seconds=30)
    taker = Taker(queue, timeout=1000)
    clock.wait_for_sleepers(1)
    queue.shutdown()
    wait_for(lambda: clock.waits == [30, 30])
    clock.wait_for_sleepers(1)
    assert queue.purge() == 1
    assert taker.result() is None


@pytest.mark.clause("W-13")
def test_a_stop_signal_ends_the_wait_but_not_before_what_is_ready(
    queue: PriorityDelayQueue, clock: NotedClock
) -> None:
    stop = Signal()
    queue.enqueue("delayed", delay_seconds=30)
    stopped, other = Taker(queue, stop=stop), Taker(queue)
    clock.wait_for_sleepers(2)
    stop.set()
    assert stopped.result() is None
    clock.wait_for_sleepers(1)
    assert other.waits
    wait_for(lambda: clock.waits[-1] == 30)  # the other thread keeps the time now, if it did not before
    queue.enqueue("ready")
    assert other.job() == "ready"
    queue.enqueue("ready too")
    assert Taker(queue, stop=stop).job() == "ready too"
    assert Taker(queue, stop=stop).result() is None
