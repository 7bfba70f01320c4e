"""A limited number of places that flows take, and wait for in turn."""

from __future__ import annotations

import threading
from collections import deque

from conquiet.flow.effects import Flow, Signal, Sleep

__all__ = ["Places"]


class Places:
    """Who has waited longest gets the next place. Safe in any thread, and on every driver."""

    def __init__(self, number: int) -> None:
        self._free = number
        self._waiting: deque[Signal] = deque()  # not empty only if no place is free
        self._lock = threading.Lock()

    def take(self, seconds: float) -> Flow[bool]:
        """Take a place; wait for one at most `seconds`. Return whether one was taken."""
        with self._lock:
            if self._free > 0:
                self._free -= 1
                return True
            turn = Signal()
            self._waiting.append(turn)
        try:
            yield Sleep(seconds, turn)
        except BaseException:  # cancellation included: a place that was just given must not be lost
            if not self._leave(turn):
                self.give_back()
            raise
        return not self._leave(turn)  # a place that was given at the last moment is kept

    def give_back(self) -> None:
        with self._lock:
            if not self._waiting:
                self._free += 1
                return
            turn = self._waiting.popleft()
        turn.set()

    def _leave(self, turn: Signal) -> bool:
        """Stop waiting. Return False if the place has been given already."""
        with self._lock:
            if turn not in self._waiting:
                return False
            self._waiting.remove(turn)
            return True
