"""The jobs that a worker holds and has not begun: in which order they begin, and which are given back.

Only a job that has begun is charged if its lease expires, so the store must know before the handler's first line. A claim
records it for the jobs that start at once, for which there is a free place. The others begin when a place is free, in one
statement with the acks of the jobs that have ended. A statement between any two jobs would slow down quick tasks, so
these differ: their jobs start from the inbox, unrecorded. If the worker dies they are not charged; but a job that has lost
a lease before is never started like that, so that the one that kills its workers is found.

A suspect, a job that had begun when its last worker died, runs alone: if it is the one, it costs nobody else anything.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from conquiet.clock import Clock
from conquiet.jobs.worker.floor import Floor
from conquiet.jobs.worker.held import Held, has_lapsed, is_suspect
from conquiet.jobs.worker.pace import AHEAD_SECONDS, Pace
from conquiet.observe import SafeLogger

__all__ = ["Intake"]

_log = SafeLogger("conquiet.jobs")

_ALONE_SECONDS = 2.0  # for how long a worker begins nothing, so that a suspect can run alone


class Intake:
    """Thread-safe: the fetcher adds, the committer takes what begins, runners report what has ended."""

    def __init__(
        self,
        places: int,
        prefetch: int | None,
        floor: Floor,
        pace: Pace,
        clock: Clock,
        *,
        isolated: bool,
    ) -> None:
        self._places = places
        self._prefetch = prefetch
        self._floor = floor
        self._pace = pace
        self._clock = clock
        self._isolated = isolated  # handlers run in processes of their own: a suspect need not run alone
        self._lock = floor.lock
        self._ahead: deque[Held] = deque()
        self._suspects: list[Held] = []
        self._running: dict[Held, None] = {}
        self._active = 0  # running, about to run, or reserved by a claim

    def room(self, held: int, results: int, rate: float) -> tuple[int, int]:
        """Return how many jobs to claim now, and how many of them start at once. These are counted until `add`.

        `results` of the `held` jobs have ended here and wait to be settled.
        """
        with self._lock:
            ahead = self._prefetch
            if ahead is None:
                ahead = self._pace.ahead(list(self._running), rate)
            # Results take no place, so that claims, handlers and acks overlap; but while the store does not settle,
            # there are no more than this.
            most = self._places + ahead
            room = min(most - (held - results), 2 * most - held)
            if room <= 0 or room * 2 < ahead or self._suspects:
                return 0, 0
            if self._prefetch is None:
                room = min(room, max(self._places, -(-most // 2)))  # one half runs while the other is claimed
            starts = max(0, min(self._places - self._active - len(self._ahead), room))
            if not self._floor.enter(starts):
                return 0, 0
            self._active += starts
            return room, starts

    def unclaimed(self, starts: int) -> None:
        """The claim that `room` advised has failed."""
        with self._lock:
            self._active -= starts
            self._floor.leave(starts)

    def add(self, jobs: Sequence[Held], starts: int, rate: float) -> tuple[list[Held], list[Held]]:
        """Take in the jobs of a claim. Return those to start now, and those to give back: they would wait too long."""
        with self._lock:
            late: list[Held] = []
            if self._prefetch is None and len(jobs) > starts:
                queued = self._active - starts - len(self._running) + len(self._ahead)
                number = max(starts, self._pace.in_time(list(self._running), queued, jobs, rate))
                late = [held for held in jobs[number:] if not held.begun]
                jobs = [*jobs[:number], *(held for held in jobs[number:] if held.begun)]
            start = [held for held in jobs if held.begun]
            unused = starts - len(start)
            self._active -= unused
            self._floor.leave(unused)
            for held in jobs:
                if held.begun:
                    continue
                if held.context.job.attempts and not self._isolated and is_suspect(held.context.job):
                    self._suspects.append(held)
                    self._floor.wait(1)
                elif not self._ahead and self._starts_unrecorded(held):
                    start.append(held)
                else:
                    self._ahead.append(held)
            if self._suspects:  # the innocent ones first
                self._suspects.sort(key=lambda held: held.context.job.lease_expiries)
        return start, late

    def _starts_unrecorded(self, held: Held) -> bool:
        if not self._pace.is_quick(held.task) or has_lapsed(held.context.job) or not self._floor.enter(1):
            return False
        self._active += 1
        return True

    def next(self) -> tuple[list[Held], list[Held]]:
        """Return the jobs that begin now, because there are places for them: those to record first, and others."""
        with self._lock:
            if self._suspects:
                suspect = self._suspects[0]
                if self._active or not self._floor.enter_alone(suspect):
                    return [], []
                suspect.alone = True
                self._active += 1
                return [self._suspects.pop(0)], []
            start: list[Held] = []
            while self._ahead and self._starts_unrecorded(self._ahead[0]):
                start.append(self._ahead.popleft())
            number = min(self._places - self._active, len(self._ahead))
            if number <= 0 or not self._floor.enter(number):
                return [], start
            self._active += number
            return [self._ahead.popleft() for _ in range(number)], start

    def started(self, held: Held) -> None:
        self._running[held] = None

    def ended(self, held: Held) -> None:
        """A job has ended, or does not start after all."""
        with self._lock:
            self._running.pop(held, None)
            self._active -= 1
            if held.alone:
                self._floor.leave_alone(held)
            else:
                self._floor.leave()

    def holds(self) -> bool:
        """Return whether jobs wait, so that `overdue` has to be asked soon."""
        return bool(self._ahead or self._suspects or self._active > len(self._running))

    def is_overdue(self, held: Held) -> bool:
        return self._prefetch is None and self._clock.monotonic() - held.since > AHEAD_SECONDS

    def overdue(self, *, after_others: bool = False) -> list[Held]:
        """Remove and return the jobs that wait if the first of them has waited too long: another worker may be idle.

        The ones behind it go, too. They would overtake it here, whatever its priority is; and so would all of them
        overtake `after_others`, jobs that were to begin before them and were given back.
        """
        with self._lock:
            if not after_others and not (self._ahead and self.is_overdue(self._ahead[0])):
                return []
            late = list(self._ahead)
            self._ahead.clear()
            return late

    def overdue_suspects(self) -> list[Held]:
        """Remove and return the suspects that could not run alone: other jobs here take too long."""
        with self._lock:
            now = self._clock.monotonic()
            late = [held for held in self._suspects if now - held.since > _ALONE_SECONDS]
            if not late or self._floor.probation_left() > 0:
                return []
            self._suspects = [held for held in self._suspects if held not in late]
            self._floor.wait(-len(late))
        for held in late:
            _log.warning(
                "job %s was running when its worker died, so it runs alone; other jobs here do not end, so it is given "
                "back for now",
                held.context.job.id,
            )
        return late

    def empty(self) -> list[Held]:
        """Remove and return all jobs that have not begun."""
        with self._lock:
            left = [*self._ahead, *self._suspects]
            suspects = len(self._suspects)
            self._ahead.clear()
            self._suspects.clear()
            self._floor.wait(-suspects)
        return left
