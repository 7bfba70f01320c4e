"""The threads that wait for an item: a condition variable that waits on an injected clock.

One waiting thread is the *timekeeper*: it sleeps no longer than until the next delayed item is due, the others sleep
until they are notified (or their own time is up). No thread is woken in vain and no wake-up is lost, because
at any time, if a thread waits,

- and an item is ready, a thread has been notified; it has left the list, so that the next notification reaches
  another thread;
- and an item is delayed, a thread is the timekeeper or has been notified;
- and a notified thread leaves (with an item, at its time limit or by an exception), it notifies the next one if there
  is something left to do.

A thread that finds an item without waiting only removes one, which breaks none of this.
"""

from __future__ import annotations

from conquiet.clock import Parker

__all__ = ["Waiters"]


class Waiters:
    """The waiting threads; true if there are any. Not thread-safe: the queue's lock is held around every call."""

    __slots__ = ("_timekeeper", "_waiting")

    def __init__(self) -> None:
        self._waiting: dict[Parker, None] = {}  # in order of arrival
        self._timekeeper: Parker | None = None

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, parker: Parker, *, timed: bool) -> bool:
        """Add `parker` before it waits; `timed` if items are delayed. Return True if it becomes the timekeeper."""
        self._waiting[parker] = None
        if timed and self._timekeeper is None:
            self._timekeeper = parker
        return self._timekeeper is parker

    def remove(self, parker: Parker) -> None:
        """Remove `parker`, which no longer waits."""
        self._waiting.pop(parker, None)
        if self._timekeeper is parker:
            self._timekeeper = None

    def notify(self) -> None:
        """Wake the thread that has waited longest."""
        self._wake(next(iter(self._waiting), None))

    def notify_all(self) -> None:
        for parker in list(self._waiting):
            self._wake(parker)

    def notify_earlier(self) -> None:
        """Wake the timekeeper, because the next due time is now earlier."""
        self._wake(self._timekeeper or next(iter(self._waiting), None))

    def hand_on(self, *, ready: bool, scheduled: bool) -> None:
        """Notify the next thread when one leaves; `ready` and `scheduled` tell whether such items are left."""
        if ready or (scheduled and self._timekeeper is None):
            self.notify()

    def _wake(self, parker: Parker | None) -> None:
        if parker is not None:
            self.remove(parker)
            parker.wake()
