"""How fast the tasks of a worker are now, and so how many jobs will begin soon."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

from conquiet.clock import Clock
from conquiet.jobs.worker.held import Held

__all__ = ["AHEAD_SECONDS", "Pace"]

AHEAD_SECONDS = 0.2  # what will begin within this time is held in advance
_MOST_AHEAD = 1_000
_WEIGHT = 0.2  # of the newest duration: what counts is the speed now
# A task is quick if many of its jobs were short. Its jobs begin without a statement of their own (see `intake.py`).
_QUICK_SECONDS = 0.05
_QUICK_JOBS = 64
_NO_TIME = 1e-6


class Pace:
    """Durations by task, measured here. Runners on several threads write, the fetcher reads."""

    def __init__(self, places: int, clock: Clock) -> None:
        self._places = places
        self._clock = clock
        self._tasks: dict[str, tuple[float, int]] = {}  # mean duration of the last jobs, how many there were
        self._mean: float | None = None

    def ended(self, task: str, seconds: float) -> None:
        mean, count = self._tasks.get(task, (seconds, 0))
        self._tasks[task] = (mean + _WEIGHT * (seconds - mean), count + 1)
        self._mean = seconds if self._mean is None else self._mean + _WEIGHT * (seconds - self._mean)

    def is_quick(self, task: str) -> bool:
        mean, count = self._tasks.get(task, (0.0, 0))
        return count >= _QUICK_JOBS and mean <= _QUICK_SECONDS

    def ahead(self, running: Iterable[Held], rate: float) -> int:
        """Return how many jobs will begin within `AHEAD_SECONDS`, beside those that fill the free places now.

        `rate` is how many jobs per second the worker really finishes, with its store.
        """
        if self._mean is None:
            return 0
        seconds = sum(max(AHEAD_SECONDS - busy, 0.0) for busy in self._busy(running))
        mean = max(self._settled(self._mean, rate), _NO_TIME)
        return int(min(seconds / mean, rate * AHEAD_SECONDS, _MOST_AHEAD))

    def _settled(self, mean: float, rate: float) -> float:
        """Return a duration without noise: a short one includes pauses of the thread, which the rate shows to be rare."""
        return min(mean, self._places / rate) if rate and mean <= _QUICK_SECONDS else mean

    def in_time(self, running: Iterable[Held], queued: int, jobs: Sequence[Held], rate: float) -> int:
        """Return how many of `jobs`, in this order, will begin in time, behind those that run and are queued.

        Jobs of a task that has not run here yet may take long.
        """
        behind = queued * self._settled(self._mean or 0.0, rate) / self._places
        places = [busy + behind for busy in self._busy(running)]
        heapq.heapify(places)
        for number, held in enumerate(jobs):
            free_at = places[0]
            if free_at > AHEAD_SECONDS:
                return number
            known = self._tasks.get(held.task)
            takes = AHEAD_SECONDS * 2 if known is None else self._settled(known[0], rate)
            heapq.heapreplace(places, free_at + takes)
        return len(jobs)

    def _busy(self, running: Iterable[Held]) -> list[float]:
        """Return for each place the seconds until it is free."""
        now = self._clock.monotonic()
        busy = [self._left(held, now) for held in running]
        return busy + [0.0] * (self._places - len(busy))

    def _left(self, held: Held, now: float) -> float:
        known = self._tasks.get(held.task)
        if known is None:
            return AHEAD_SECONDS * 2
        age = now - held.began
        return known[0] - age if age < known[0] else age  # late already: probably as long again
