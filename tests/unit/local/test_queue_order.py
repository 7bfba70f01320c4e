"""Which item comes next."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from conquiet.clock import utc
from conquiet.local import PriorityDelayQueue, QueueItem, QueueSettings
from conquiet.testing import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def queue(clock: ManualClock) -> PriorityDelayQueue:
    return PriorityDelayQueue(clock=clock)


def drain(queue: PriorityDelayQueue) -> list[Any]:
    jobs = []
    while (item := queue.dequeue(block=False)) is not None:
        jobs.append(item.job)
    return jobs


@pytest.mark.clause("W-01", "W-05", "W-08")
def test_lower_values_first_and_first_in_first_out_within_a_value(queue: PriorityDelayQueue) -> None:
    for job, priority in [("a", "low"), ("b", "normal"), ("c", "high"), ("d", "normal"), ("e", "high")]:
        queue.enqueue(job, priority)
    queue.enqueue("f")  # normal is the default
    assert drain(queue) == ["c", "e", "b", "d", "f", "a"]


@pytest.mark.clause("W-08")
def test_labels_with_one_value_share_one_order() -> None:
    queue = PriorityDelayQueue(QueueSettings(priorities={"web": 1, "api": 1, "batch": -3}))
    for job, priority in [(1, "web"), (2, "api"), (3, "web"), (4, "batch"), (5, "api")]:
        queue.enqueue(job, priority)
    assert drain(queue) == [4, 1, 2, 3, 5]


@pytest.mark.clause("W-08")
def test_jobs_are_never_compared(queue: PriorityDelayQueue) -> None:
    jobs = [object() for _ in range(50)]
    for job in jobs:
        queue.enqueue(job)
    assert drain(queue) == jobs


@pytest.mark.clause("W-02", "W-05")
def test_a_delayed_item_is_ready_at_its_time_and_not_before(
    queue: PriorityDelayQueue, clock: ManualClock
) -> None:
    queue.enqueue("later", delay_seconds=10)
    clock.advance(9.75)
    assert drain(queue) == []
    clock.advance(0.25)
    assert drain(queue) == ["later"]


@pytest.mark.clause("W-01", "W-05")
def test_all_that_is_due_competes_by_priority_and_then_by_the_order_of_enqueueing(
    queue: PriorityDelayQueue, clock: ManualClock
) -> None:
    queue.enqueue("normal, due last", delay_seconds=3)
    queue.enqueue("low, due first", "low", delay_seconds=1)
    queue.enqueue("normal, due second", delay_seconds=2)
    queue.enqueue("high, due last", "high", delay_seconds=3)
    queue.enqueue("normal, at once")
    clock.advance(3)
    assert drain(queue) == [
        "high, due last",
        "normal, due last",  # enqueued before the other two, though due after them
        "normal, due second",
        "normal, at once",
        "low, due first",
    ]


@pytest.mark.clause("W-05")
def test_what_is_promoted_goes_in_between_what_is_ready_already(
    queue: PriorityDelayQueue, clock: ManualClock
) -> None:
    queue.enqueue("a", "low")
    for number in range(3):
        queue.enqueue(f"delayed {number}", delay_seconds=5)
    for number in range(3):
        queue.enqueue(f"ready {number}")
    assert queue.dequeue().job == "ready 0"
    clock.advance(5)
    queue.enqueue("last")
    assert drain(queue) == ["delayed 0", "delayed 1", "delayed 2", "ready 1", "ready 2", "last", "a"]


@pytest.mark.clause("W-08")
def test_an_item_that_is_put_back_has_its_old_place() -> None:
    queue = PriorityDelayQueue(QueueSettings(max_in_memory=3))
    for job in ("a", "b", "c"):
        queue.enqueue(job)
    first = queue.dequeue()
    assert first is not None
    queue.enqueue("d")
    queue.shutdown()
    queue.put_back(first)  # already accepted: a full or shut down queue does not refuse it
    assert queue.snapshot()["depth"] == 4
    assert drain(queue) == ["a", "b", "c", "d"]


@pytest.mark.clause("W-09")
def test_a_far_future_high_priority_item_holds_nothing_up(
    queue: PriorityDelayQueue, clock: ManualClock
) -> None:
    queue.enqueue("in a year", "high", delay_seconds=365 * 86_400)
    queue.enqueue("in a second", "low", delay_seconds=1)
    queue.enqueue("now")
    assert drain(queue) == ["now"]
    clock.advance(1)
    assert drain(queue) == ["in a second"]


@pytest.mark.clause("W-02")
@pytest.mark.parametrize("delay", [0, 0.0, -0.001, -3600])
def test_a_delay_that_is_over_makes_the_item_ready(
    queue: PriorityDelayQueue, clock: ManualClock, delay: float
) -> None:
    """A scheduler that subtracts two times may be a little late."""
    item = queue.enqueue("job", delay_seconds=delay)
    assert item.ready_at == utc(clock.time()) + timedelta(seconds=delay)
    assert queue.snapshot()["ready"] == 1
    assert queue.dequeue(block=False) is item


@pytest.mark.clause("W-02", "W-12")
def test_an_item_has_the_documented_fields(queue: PriorityDelayQueue, clock: ManualClock) -> None:
    job = object()
    queue.enqueue("first")
    item = queue.enqueue(job, "high", 90.5)
    now = utc(clock.time())
    assert item == QueueItem(
        job=job,
        priority_label="high",
        priority_value=0,
        enqueued_at=now,
        ready_at=now + timedelta(seconds=90.5),
        seq=1,
    )
    assert item.ready_at.utcoffset() == timedelta(0)
    clock.advance(90.5)
    assert queue.dequeue() is item
    with pytest.raises(AttributeError):
        item.seq = 9  # type: ignore[misc]


@pytest.mark.clause("W-02")
@pytest.mark.parametrize("jump", [-86_400.0, 86_400.0])
def test_setting_the_machines_clock_neither_hastens_nor_holds_up_an_item(jump: float) -> None:
    class SetClock(ManualClock):
        shift = 0.0

        def time(self) -> float:
            return super().time() + self.shift

    clock = SetClock()
    queue = PriorityDelayQueue(clock=clock)
    first = queue.enqueue("first", delay_seconds=60)
    clock.shift = jump
    second = queue.enqueue("second", delay_seconds=60)
    assert second.ready_at - first.ready_at == timedelta(seconds=jump)  # as the wall clock shows it
    clock.advance(59)
    assert drain(queue) == []
    clock.advance(1)
    assert drain(queue) == ["first", "second"]


def served_beside_a_flood(ageing_seconds: float | None) -> list[Any]:
    """One low item, and a worker that takes as much of high priority as arrives: an item each second."""
    clock = ManualClock()
    queue = PriorityDelayQueue(QueueSettings(ageing_seconds=ageing_seconds), clock=clock)
    queue.enqueue("low", "low")
    served = []
    for second in range(1_000):
        queue.enqueue(second, "high")
        item = queue.dequeue()
        assert item is not None
        served.append(item.job)
        clock.advance(1)
    return served


def test_priorities_are_strict_by_default_and_low_ones_may_starve() -> None:
    assert served_beside_a_flood(None) == list(range(1_000))


def test_with_ageing_a_low_item_is_served_in_time() -> None:
    assert served_beside_a_flood(60).index("low") == 10 * 60  # 10 is the difference of the values


def test_an_item_that_is_put_back_keeps_its_age() -> None:
    clock = ManualClock()
    queue = PriorityDelayQueue(QueueSettings(ageing_seconds=1), clock=clock)
    queue.enqueue("low", "low")
    item = queue.dequeue()
    assert item is not None
    clock.advance(11)
    queue.put_back(item)
    queue.enqueue("high", "high")
    assert [queue.dequeue().job for _ in range(2)] == ["low", "high"]
