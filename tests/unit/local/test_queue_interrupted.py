"""A signal handler runs between any two lines of the queue's own code: here a trace function stands for it."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from conquiet.clock import Parker
from conquiet.local import PriorityDelayQueue, QueueSettings, QueueSnapshot, queue, schedule
from conquiet.testing import ManualClock

FOLDER = str(Path(queue.__file__).parent)


@contextmanager
def interrupted(handler: Callable[[int], object]) -> Iterator[None]:
    """Call `handler(number)` before each line of the queue that this thread runs."""
    number, inside = 0, False

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal number, inside
        if inside or not frame.f_code.co_filename.startswith(FOLDER):
            return None
        if event == "line":
            inside = True
            handler(number)
            number, inside = number + 1, False
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


@pytest.mark.clause("W-10")
@pytest.mark.parametrize("full", [2, schedule.FULL])
@pytest.mark.parametrize("ageing", [None, 1.0])
def test_a_snapshot_amid_a_change_changes_nothing(
    full: int, ageing: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule, "FULL", full)
    clock, chance = ManualClock(), random.Random(17)
    items = PriorityDelayQueue(QueueSettings(max_in_memory=1_000, ageing_seconds=ageing), clock)
    seen: list[QueueSnapshot] = []
    taken: list[int] = []

    def take() -> None:
        while (item := items.dequeue(block=False)) is not None:
            taken.append(item.job)

    def handler(number: int) -> None:
        clock.advance(0.001)  # more items become due meanwhile
        seen.append(items.snapshot())

    with interrupted(handler):
        for job in range(300):
            items.enqueue(job, chance.choice(("high", "normal", "low")), chance.choice((0, 0.5, 1, 1.5)))
            if job % 20 == 0:
                clock.advance(0.5)
                take()
            if job % 70 == 0:
                items.snapshot()
        clock.advance(2)
        take()
    assert sorted(taken) == list(range(300))
    assert items.snapshot() == {"depth": 0, "ready": 0, "scheduled": 0, "shutdown": False}
    assert len(seen) > 5_000
    for one in seen:
        assert one["depth"] == one["ready"] + one["scheduled"]
        assert min(one["ready"], one["scheduled"]) >= 0
        assert one["depth"] <= 300


class Asleep(Exception):
    """The thread is about to sleep, and nobody has woken it."""


class SleeplessClock(ManualClock):
    slept = False

    def wait(self, parker: Parker, timeout: float | None) -> bool:
        if not parker.park(0):
            self.slept = True
            raise Asleep
        return True


def test_a_shutdown_while_a_thread_begins_to_wait_is_not_overslept() -> None:
    """Whichever line it interrupts on the waiting thread itself."""

    def overslept(shut_at: int) -> bool:
        """Return whether nothing woke it; raise `IndexError` if it has fewer lines until it sleeps."""
        clock = SleeplessClock()
        items = PriorityDelayQueue(clock=clock)

        def handler(number: int) -> None:
            if number == shut_at and not clock.slept:
                items.shutdown()

        try:
            with interrupted(handler):
                assert items.dequeue() is None
        except Asleep:
            if not items.snapshot()["shutdown"]:
                raise IndexError from None
            return True
        return False

    for line in count():
        try:
            assert not overslept(line), f"it sleeps, although it was shut down at line {line}"
        except IndexError:
            break
    assert line > 10
