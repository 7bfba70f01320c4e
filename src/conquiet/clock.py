"""Time, injected: wall time for what is stored, monotonic time for differences, and the one way to wait.

Nothing in conquiet calls `time.time()` or `time.sleep()` by itself; it asks a `Clock`, so that tests can hand
in one that they move by hand (`conquiet.testing.ManualClock`).
"""

from __future__ import annotations

import queue
import threading
import time
from datetime import UTC, datetime
from typing import Protocol

__all__ = ["SYSTEM_CLOCK", "Clock", "Parker", "SystemClock", "utc"]


class Parker:
    """The place where one thread waits to be woken.

    A `SimpleQueue` and not a `threading.Event`: an Event takes a lock that a signal handler, running on top of
    the thread that holds it, would wait for for ever; `SimpleQueue.put` may be called from anywhere.
    """

    __slots__ = ("_wakes",)

    def __init__(self) -> None:
        self._wakes: queue.SimpleQueue[None] = queue.SimpleQueue()

    def wake(self) -> None:
        """End the wait in progress, or the next one. Any thread, any signal handler."""
        self._wakes.put(None)

    def park(self, timeout: float | None) -> bool:
        """Wait for a wake, in real time; False if none came in `timeout` seconds."""
        if timeout is not None:
            timeout = min(max(timeout, 0.0), threading.TIMEOUT_MAX)
        try:
            self._wakes.get(timeout=timeout)
        except queue.Empty:
            return False
        return True


class Clock(Protocol):
    """What the rest of the package asks about time."""

    def time(self) -> float:
        """Wall time, in seconds since 1970 UTC: for what is stored or shown."""

    def monotonic(self) -> float:
        """Seconds that never jump: for differences and deadlines."""

    def wait(self, parker: Parker, timeout: float | None) -> bool:
        """Park until woken (True) or until `timeout` seconds of *this* clock have passed (False)."""


class SystemClock:
    """The machine's own clocks."""

    def time(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    def wait(self, parker: Parker, timeout: float | None) -> bool:
        return parker.park(timeout)


SYSTEM_CLOCK = SystemClock()


def utc(seconds: float) -> datetime:
    """A wall time as the aware UTC datetime in which conquiet shows and stores it."""
    return datetime.fromtimestamp(seconds, UTC)
