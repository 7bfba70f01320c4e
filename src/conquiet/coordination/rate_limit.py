"""A rate per name, for example per affiliate, that several processes keep together."""

from __future__ import annotations

import threading
from typing import Protocol

from conquiet.coordination.state import Script, SharedState

__all__ = ["RateLimiter", "SharedRateLimiter"]

_SCRIPT = Script("rate_limit.lua")
_MOST_COPIES = 10_000


class RateLimiter(Protocol):
    def wait_for(self, name: str) -> float:
        """Take a token and return 0, or return the seconds until one is available."""


class SharedRateLimiter:
    """A token bucket per name: `burst` immediately, then one each `60 / per_minute` seconds, for all processes together.

    While Redis is away, the process-local limiter `alone` decides. A refusal is remembered for `copy_seconds`: a name that
    is too fast does not cost Redis a call for each of its attempts.
    """

    def __init__(
        self, state: SharedState, alone: RateLimiter, *, per_minute: float, burst: int, kind: str = "rate"
    ) -> None:
        self._state = state
        self._alone = alone
        self._kind = kind
        self._interval = max(1, round(60_000_000 / per_minute))
        self._tolerance = (burst - 1) * self._interval
        self._lock = threading.Lock()
        self._refused: dict[str, tuple[float, float]] = {}  # refused at, and for so long

    def wait_for(self, name: str) -> float:
        """Take a token and return 0, or return the seconds until one is available."""
        wait = self._remembered(name)
        if wait > 0.0:
            return wait
        answer = self._state.run(_SCRIPT, self._kind, name, self._interval, self._tolerance)
        if answer is None:
            return self._alone.wait_for(name)
        if answer[0]:
            self._remember(name, answer[0] / 1_000_000)
        return float(answer[0] / 1_000_000)

    def _remembered(self, name: str) -> float:
        if name not in self._refused:
            return 0.0
        now = self._state.clock.monotonic()
        with self._lock:
            refused_at, wait = self._refused.get(name, (now, 0.0))
            passed = now - refused_at
            if 0.0 <= passed < min(wait, self._state.copy_seconds):
                return wait - passed
            self._refused.pop(name, None)
        return 0.0

    def _remember(self, name: str, wait: float) -> None:
        with self._lock:
            self._refused[name] = self._state.clock.monotonic(), wait
            if len(self._refused) > _MOST_COPIES:
                del self._refused[next(iter(self._refused))]
