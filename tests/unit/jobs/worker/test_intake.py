"""What a worker holds and has not begun is given back in an order that lets nothing overtake."""

from __future__ import annotations

import pytest

from conquiet.flow import Signal
from conquiet.jobs import JobStore, open_store
from conquiet.jobs.worker.context import JobContext
from conquiet.jobs.worker.floor import Floor
from conquiet.jobs.worker.held import Held
from conquiet.jobs.worker.intake import Intake
from conquiet.jobs.worker.pace import AHEAD_SECONDS, Pace
from conquiet.testing import ManualClock

RATE = 1_000.0


class Filled:
    """An intake with one place, and a store to fill it from."""

    def __init__(self, store: JobStore) -> None:
        self.clock = ManualClock()
        self.store = store
        pace = Pace(1, self.clock)
        pace.ended("q", 0.001)
        self.intake = Intake(1, None, Floor(self.clock), pace, self.clock, isolated=False)

    def claim(self, number: int) -> list[str]:
        now = self.clock.monotonic()
        held = [
            Held(JobContext(job, None, Signal()), "q", now, now + 30, False)
            for job in self.store.claim("q", number)
        ]
        assert self.intake.add(held, 0, RATE) == ([], [])
        return [one.context.job.id for one in held]

    def overdue(self, **options: bool) -> list[str]:
        return [held.context.job.id for held in self.intake.overdue(**options)]


@pytest.fixture
def held() -> Filled:
    store = open_store("memory://")
    store.enqueue_many("q", [{}] * 10)
    return Filled(store)


@pytest.mark.clause("J-18", "J-19")
def test_what_came_later_does_not_overtake_what_is_given_back(held: Filled) -> None:
    early = held.claim(2)
    held.clock.advance(AHEAD_SECONDS * 0.8)
    late = held.claim(2)
    assert held.overdue() == []
    held.clock.advance(AHEAD_SECONDS * 0.4)
    assert held.overdue() == [*early, *late]
    assert held.overdue() == []


@pytest.mark.clause("J-18", "J-19")
def test_nor_what_was_to_begin_before_it(held: Filled) -> None:
    ids = held.claim(2)
    assert held.overdue(after_others=True) == ids
