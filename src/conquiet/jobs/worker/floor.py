"""Which jobs of a process run beside each other: a suspect runs alone."""

from __future__ import annotations

import threading
from collections.abc import Callable

from conquiet.clock import Clock
from conquiet.jobs.worker.held import Held

__all__ = ["Floor"]

_PROBATION_SECONDS = 5.0  # a suspect that has run alone for so long no longer keeps others waiting


class Floor:
    """Shared by the lanes of a worker. While a suspect runs or waits, no other job begins.

    Every method but `on_change` is called with `lock` held, which also guards what the lanes count.
    """

    def __init__(self, clock: Clock) -> None:
        self.lock = threading.Lock()
        self._clock = clock
        self._running = 0
        self._waiting = 0
        self._alone: Held | None = None
        self._alone_since = 0.0
        self._wake: list[Callable[[], None]] = []

    def on_change(self, wake: Callable[[], None]) -> None:
        """Call `wake` when jobs may begin that could not before."""
        self._wake.append(wake)

    def enter(self, jobs: int) -> bool:
        """Count `jobs` as running. Return False if none may begin now."""
        if self._waiting or (self._alone is not None and self.probation_left() > 0):
            return False
        self._running += jobs
        return True

    def leave(self, jobs: int = 1) -> None:
        self._running -= jobs
        if self._waiting and not self._running:
            self._call()

    def wait(self, suspects: int) -> None:
        """Count jobs that wait until they can run alone; a negative number if they no longer wait."""
        self._waiting += suspects
        if not self._waiting:
            self._call()

    def enter_alone(self, suspect: Held) -> bool:
        """Let one of the waiting suspects run if nothing else does."""
        if self._running or self._alone is not None:
            return False
        self._alone, self._alone_since = suspect, self._clock.monotonic()
        self._waiting -= 1
        return True

    def leave_alone(self, suspect: Held) -> None:
        if self._alone is suspect:
            self._alone = None
        self._call()

    def probation_left(self) -> float:
        """Return for how long the suspect that runs keeps others waiting."""
        if self._alone is None:
            return 0.0
        return self._alone_since + _PROBATION_SECONDS - self._clock.monotonic()

    def _call(self) -> None:
        for wake in self._wake:
            wake()
