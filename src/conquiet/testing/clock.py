"""A clock that is moved by hand."""

from __future__ import annotations

import threading

from conquiet.clock import Parker

__all__ = ["ManualClock"]


class ManualClock:
    """Wall and monotonic time that change only by `advance`, which wakes the waiters that are due."""

    def __init__(self, start: float = 1_700_000_000.0) -> None:
        self._start = start
        self._elapsed = 0.0
        self._lock = threading.Lock()
        self._sleepers: list[tuple[float, Parker]] = []
        self._changed = threading.Condition(self._lock)

    def time(self) -> float:
        return self._start + self._elapsed

    def monotonic(self) -> float:
        return self._elapsed

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass; waits with a deadline until then end."""
        if seconds < 0:
            raise ValueError(f"time does not go back: advance({seconds!r})")
        self.advance_to(self._elapsed + seconds)

    def advance_to(self, monotonic: float) -> None:
        """Let time pass until `monotonic()` has this value; never backwards. Exact: adding differences would round."""
        with self._lock:
            self._elapsed = max(self._elapsed, monotonic)
            due = [parker for deadline, parker in self._sleepers if deadline <= self._elapsed]
        for parker in due:
            parker.wake()

    def wait(self, parker: Parker, timeout: float | None) -> bool:
        if timeout is None:
            with self._sleeping(parker, float("inf")):
                return parker.park(None)
        deadline = self._elapsed + timeout
        with self._sleeping(parker, deadline):
            if deadline <= self._elapsed:
                return parker.park(0)
            parker.park(None)
        return self._elapsed < deadline

    def _sleeping(self, parker: Parker, deadline: float) -> _Sleeping:
        return _Sleeping(self, (deadline, parker))

    def wait_for_sleepers(self, count: int = 1, timeout: float = 10.0) -> None:
        """Block (in real time) until `count` threads wait on this clock and it is safe to advance it."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._sleepers) >= count, timeout):
                raise TimeoutError(
                    f"{len(self._sleepers)} of {count} threads were waiting after {timeout:g} s"
                )


class _Sleeping:
    def __init__(self, clock: ManualClock, entry: tuple[float, Parker]) -> None:
        self._clock = clock
        self._entry = entry

    def __enter__(self) -> None:
        with self._clock._changed:
            self._clock._sleepers.append(self._entry)
            self._clock._changed.notify_all()

    def __exit__(self, *_: object) -> None:
        with self._clock._lock:
            self._clock._sleepers.remove(self._entry)
