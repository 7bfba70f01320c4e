"""The buckets of delayed items: the right items at the right time, with little work for many."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conquiet.clock import utc
from conquiet.local import PriorityDelayQueue, QueueItem, QueueSettings, schedule
from conquiet.local.schedule import Timeline
from conquiet.testing import ManualClock
from tests.campaign import campaign_size

LARGE = QueueSettings(max_in_memory=10**7, warn_depth=10**7)
NOW = utc(0)


def item(seq: int) -> QueueItem:
    return QueueItem(None, "normal", 5, NOW, NOW, seq)


@pytest.mark.clause("W-01", "W-05")
@given(st.lists(st.one_of(st.integers(0, 5), st.just(-1), st.floats(0, 5))), st.sampled_from([2, 3, 8]))
def test_a_timeline_gives_what_is_due_as_runs_in_seq_order(program: list[float], full: int) -> None:
    """In a program, -1 advances the time by one; any other number is an item due that much later."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schedule, "FULL", full)
        timeline, now, waiting = Timeline(), 0.0, []
        for seq, step in enumerate([*program, *[-1.0] * 6]):
            if step >= 0:
                timeline.add(now + step, item(seq))
                waiting.append((now + step, seq))
                continue
            now += 1
            due = [entry for entry in waiting if entry[0] <= now]
            waiting = [entry for entry in waiting if entry[0] > now]
            taken = timeline.take_due(now)
            for bucket in taken:
                seqs = [entry.seq for entry in bucket.items]
                assert seqs == sorted(seqs)
                assert bucket.end == max(bucket.dues)
            given_back = [
                (due, entry.seq)
                for bucket in taken
                for due, entry in zip(bucket.dues, bucket.items, strict=True)
            ]
            assert sorted(given_back) == sorted(due)
            assert timeline.next_due == min((entry[0] for entry in waiting), default=float("inf"))
        assert waiting == []


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of all buckets that are halved from now on."""
    sizes: list[int] = []
    halve = Timeline._halve

    def noting(self: Timeline, at: int) -> None:
        sizes.append(len(self._buckets[at].items))
        halve(self, at)

    monkeypatch.setattr(Timeline, "_halve", noting)
    return sizes


def patterns(count: int) -> dict[str, Callable[[int], float]]:
    chance = random.Random(7)
    return {
        "one instant": lambda n: 50.0,
        "rising": lambda n: 10 + n / count * 80,
        "falling": lambda n: 90 - n / count * 80,
        "random": lambda n: chance.uniform(10, 90),
        "one instant among others": lambda n: 50.0 if n % 2 else chance.uniform(49.999, 50.001),
        "falling towards one instant": lambda n: 50.0 if n < 3_000 else 51 - n / count,
        "rising towards one instant": lambda n: 50.0 if n < 3_000 else 49 + n / count,
        "a few instants": lambda n: 50.0 + n % 7,
        "whole seconds and their neighbours": lambda n: 50.0 + n % 3 + chance.choice((0, 0, 1e-9, -1e-9)),
    }


@pytest.mark.clause("W-05")
@pytest.mark.parametrize("pattern", patterns(1))
def test_the_work_per_item_does_not_grow(pattern: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the due times: each item is moved only a few times, and promotion touches buckets, not items."""
    count = 40_000
    sizes = counted(monkeypatch)
    clock = ManualClock()
    queue = PriorityDelayQueue(LARGE, clock)
    due = patterns(count)[pattern]
    for number in range(count):
        queue.enqueue(number, ("high", "normal", "low")[number % 3], delay_seconds=due(number))
    assert sum(sizes) <= 8 * count
    assert max(sizes, default=0) <= schedule.FULL + 1
    timelines = queue._schedule._timelines.values()
    assert sum(len(timeline._buckets) for timeline in timelines) < 8 * count / schedule.FULL + 20
    for timeline in timelines:  # a large one has a single due time
        for start, bucket in zip(timeline._starts, timeline._buckets, strict=True):
            assert len(bucket.items) <= schedule.FULL or start == bucket.end
    sizes.clear()
    clock.advance(100)
    assert queue.snapshot()["ready"] == count
    assert len(queue._ready) < 8 * count / schedule.FULL + 20  # entries, not items
    assert sizes == []
    order = [(taken.priority_value, taken.seq) for taken in iter(lambda: queue.dequeue(block=False), None)]
    assert len(order) == count
    assert order == sorted(order)


@pytest.mark.clause("W-05")
def test_items_that_fall_due_one_by_one_are_moved_a_few_times_each(monkeypatch: pytest.MonkeyPatch) -> None:
    count = 8_000
    sizes = counted(monkeypatch)
    clock = ManualClock()
    queue = PriorityDelayQueue(LARGE, clock)
    chance = random.Random(3)
    for number in range(count):
        queue.enqueue(number, delay_seconds=chance.uniform(1, 99))
    taken: list[Any] = []
    for _ in range(1_000):
        clock.advance(0.1)
        while (got := queue.dequeue(block=False)) is not None:
            taken.append(got.job)
    assert sorted(taken) == list(range(count))
    assert sum(sizes) < 20 * count


@pytest.mark.clause("W-05")
@pytest.mark.campaign
def test_no_dequeue_takes_long_however_many_are_due_at_once() -> None:
    """With 1,000,000 items in a full campaign the longest dequeue takes less than 50 ms of CPU time; it never waits."""
    count, chance = campaign_size(1_000_000), random.Random(5)
    for due in (lambda: chance.uniform(1, 90), lambda: 60.0):
        clock = ManualClock()
        queue = PriorityDelayQueue(LARGE, clock)
        for number in range(count):
            queue.enqueue(number, ("high", "normal", "low")[number % 3], due())
        clock.advance(100)
        gc.collect()
        gc.freeze()  # garbage collection of a million new objects is not the queue's pause
        durations = []
        try:
            for _ in range(count):
                begun = time.thread_time()
                assert queue.dequeue() is not None
                durations.append(time.thread_time() - begun)
        finally:
            gc.unfreeze()
        assert max(durations) < 0.05
