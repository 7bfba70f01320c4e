"""Injected time: wall time for what is stored, monotonic time for differences, and the one way to wait.

conquiet does not call `time.time()` or `time.sleep()` directly; it asks a `Clock`, so that tests can pass one that
they move by hand (`conquiet.testing.ManualClock`).
"""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime
from typing import Protocol

__all__ = ["HEARD_SECONDS", "SYSTEM_CLOCK", "Clock", "Parker", "SystemClock", "on_grid", "utc", "utc_text"]

# Python runs signal handlers between two instructions of the main thread. A signal that arrives after the last
# instruction before a wait does not interrupt the wait, so the main thread never waits for longer than this in one piece.
HEARD_SECONDS = 0.5


class Parker:
    """The place where one thread waits to be woken.

    A bare lock: the waiter acquires it, the waker releases it. Not a `threading.Event`: its internal lock deadlocks
    if a signal handler interrupts the thread that holds it. Not a `SimpleQueue`: its `get(timeout=...)` waits for ever
    if the thread is delayed past the timeout, because it computes a negative remaining time.
    """

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def wake(self) -> None:
        """End the wait in progress, or the next one. Safe from any thread and any signal handler."""
        try:
            self._lock.release()
        except RuntimeError:
            pass  # already woken, and not waited on since

    def park(self, timeout: float | None) -> bool:
        """Wait for `wake`, in real time; False if it was not called within `timeout` seconds."""
        left = threading.TIMEOUT_MAX if timeout is None else min(max(timeout, 0.0), threading.TIMEOUT_MAX)
        if left > HEARD_SECONDS and threading.current_thread() is threading.main_thread():
            end = time.monotonic() + left
            while left > HEARD_SECONDS:
                if self._lock.acquire(timeout=HEARD_SECONDS):
                    return True
                left = end - time.monotonic()
        return self._lock.acquire(timeout=max(left, 0.0))


class Clock(Protocol):
    """The source of time for the rest of the package."""

    def time(self) -> float:
        """Wall time, in seconds since 1970 UTC: for times that are stored or shown."""

    def monotonic(self) -> float:
        """Seconds that never jump: for differences and deadlines."""

    def wait(self, parker: Parker, timeout: float | None) -> bool:
        """Park until woken (True) or until `timeout` seconds of *this* clock have passed (False)."""


class SystemClock:
    """The clocks of the machine."""

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


def utc_text(seconds: float) -> str | None:
    """A wall time for a log. None if no calendar has it: a delay may be of any length."""
    try:
        return utc(seconds).isoformat(timespec="milliseconds")
    except (OverflowError, ValueError, OSError):
        return None


def on_grid(seconds: float) -> float:
    """`seconds` rounded to the microsecond, the precision of a datetime.

    Stores that keep times as floats compare only rounded times. Otherwise a lease could end a fraction of a microsecond
    before the time that it shows, and two workers could hold valid leases of one job.
    """
    return round(seconds, 6)
