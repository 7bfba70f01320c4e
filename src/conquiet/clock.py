"""Time, injected: wall time for what is stored, monotonic time for differences, and the one way to wait.

Nothing in conquiet calls `time.time()` or `time.sleep()` by itself; it asks a `Clock`, so that tests can hand
in one that they move by hand (`conquiet.testing.ManualClock`).
"""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime
from typing import Protocol

__all__ = ["SYSTEM_CLOCK", "Clock", "Parker", "SystemClock", "on_grid", "utc"]


class Parker:
    """The place where one thread waits to be woken.

    A bare lock, which whoever wakes releases and whoever waits takes. Not a `threading.Event`, which takes a lock
    that a signal handler, running on top of the thread that holds it, would wait for for ever. Not a `SimpleQueue`:
    its `get(timeout=...)`, if the thread is held up past its time, finds a time left below 0 and waits for ever.
    """

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def wake(self) -> None:
        """End the wait in progress, or the next one. Any thread, any signal handler."""
        try:
            self._lock.release()
        except RuntimeError:
            pass  # woken already, and nobody has waited since

    def park(self, timeout: float | None) -> bool:
        """Wait for a wake, in real time; False if none came in `timeout` seconds."""
        if timeout is None:
            return self._lock.acquire()
        return self._lock.acquire(timeout=min(max(timeout, 0.0), threading.TIMEOUT_MAX))


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


def on_grid(seconds: float) -> float:
    """A time to the microsecond, as a datetime shows it.

    Stores that keep times as floats compare these alone. Otherwise a lease could end a fraction of a microsecond before
    the time that it shows, and two workers hold valid leases of one job.
    """
    return round(seconds, 6)
