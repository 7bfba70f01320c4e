"""The queue against a plain list: after any operations, it returns what sorting would."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from conquiet.local import PriorityDelayQueue, QueueFullError, QueueSettings, QueueShutdownError, schedule
from conquiet.testing import ManualClock
from tests.campaign import campaign_size

PRIORITIES = {"high": 0, "normal": 5, "low": 10, "also low": 10}
CAPACITY = 60
# Few different due times, so that many items share one. Quarters add up exactly.
quarters = st.integers(0, 40).map(lambda number: number / 4)


class QueueMachine(RuleBasedStateMachine):
    """The oracle is a list of (due, value, seq, job)."""

    ageing: float | None = None

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.queue = PriorityDelayQueue(
            QueueSettings(PRIORITIES, CAPACITY, CAPACITY, self.ageing), self.clock
        )
        self.expected: list[tuple[float, int, int, Any]] = []
        self.shut = False
        self.seq = 0

    @rule(priority=st.sampled_from(sorted(PRIORITIES)), delay=quarters, times=st.integers(1, 8))
    def enqueue(self, priority: str, delay: float, times: int) -> None:
        for _ in range(times):
            job = object()
            if self.shut or len(self.expected) == CAPACITY:
                with pytest.raises(QueueShutdownError if self.shut else QueueFullError):
                    self.queue.enqueue(job, priority, delay)
                return
            item = self.queue.enqueue(job, priority, delay)
            assert item.seq == self.seq
            self.expected.append((self.clock.monotonic() + delay, PRIORITIES[priority], self.seq, job))
            self.seq += 1

    @rule(seconds=quarters)
    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(times=st.integers(1, 5))
    def dequeue(self, times: int) -> None:
        for _ in range(times):
            due = [entry for entry in self.expected if entry[0] <= self.clock.monotonic()]
            item = self.queue.dequeue(block=False)
            if not due:
                assert item is None
                return
            best = min(due, key=self.rank)
            self.expected.remove(best)
            assert item is not None
            assert (item.priority_value, item.seq, item.job) == best[1:]

    def rank(self, entry: tuple[float, int, int, Any]) -> tuple[float, int]:
        due, value, seq, _ = entry
        return (value, seq) if self.ageing is None else (value + due / self.ageing, seq)

    @rule(times=st.integers(1, 5))
    def put_back(self, times: int) -> None:
        """An item that was taken and put back returns to its place, whatever was enqueued meanwhile."""
        items = [self.queue.dequeue(block=False) for _ in range(times)]
        for item in items:
            if item is not None:
                self.queue.put_back(item)

    @precondition(lambda self: self.seq > 50)
    @rule()
    def purge(self) -> None:
        assert self.queue.purge() == len(self.expected)
        self.expected.clear()

    @precondition(lambda self: self.seq > 100)
    @rule()
    def shutdown(self) -> None:
        self.queue.shutdown()
        self.shut = True

    @invariant()
    def the_count_is_right(self) -> None:
        assert self.queue.depth == len(self.expected)

    @rule()
    def snapshot(self) -> None:
        ready = sum(entry[0] <= self.clock.monotonic() for entry in self.expected)
        depth = len(self.expected)
        assert self.queue.snapshot() == {
            "depth": depth,
            "ready": ready,
            "scheduled": depth - ready,
            "shutdown": self.shut,
        }


class AgeingMachine(QueueMachine):
    """Five seconds of waiting outweigh the five between two priorities."""

    ageing = 1.0


@pytest.mark.clause("W-01", "W-02", "W-05", "W-08", "W-10")
@pytest.mark.campaign
@pytest.mark.parametrize("full", [2, 5, schedule.FULL])
@pytest.mark.parametrize("machine", [QueueMachine, AgeingMachine])
def test_model(machine: type[QueueMachine], full: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With small buckets, which are halved and closed all the time, and with the real size."""
    from hypothesis.stateful import run_state_machine_as_test

    monkeypatch.setattr(schedule, "FULL", full)
    run_state_machine_as_test(
        machine,
        settings=settings(max_examples=campaign_size(2_000), stateful_step_count=60, deadline=None),
    )
