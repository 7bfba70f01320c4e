"""Wake-ups for those waiting for work in this process. Each has its own signal, so no wake-up is taken by another."""

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
        """Yield a signal that is set when work arrives. Look for work inside the block, not before it."""
        signal = Signal()
        self._waiting[signal] = None
        try:
            yield signal
        finally:
            del self._waiting[signal]

    def wake_all(self) -> None:
        for signal in list(self._waiting):
            signal.set()
