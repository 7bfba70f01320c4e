"""Who waits for work in this process: each has a signal of its own, so nobody takes another's wake-up."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from conquiet.flow import Signal

__all__ = ["Wakeups"]


class Wakeups:
    def __init__(self) -> None:
        self._waiting: dict[Signal, None] = {}

    @contextmanager
    def waiting(self) -> Iterator[Signal]:
        """A signal for one who waits. Look for work after this, not before: what comes later sets it."""
        signal = Signal()
        self._waiting[signal] = None
        try:
            yield signal
        finally:
            del self._waiting[signal]

    def wake_all(self) -> None:
        for signal in list(self._waiting):
            signal.set()
