"""The limit on how often each affiliate may submit a report."""

from __future__ import annotations

import threading

from conquiet.clock import SYSTEM_CLOCK, Clock
from conquiet.reconcile.rules import IntakeRules

__all__ = ["RateLimiter"]

_MOST_TRACKED = 100_000


class RateLimiter:
    """A token bucket per affiliate: `burst` immediately, then `per_minute`. In this process's memory only.

    A bucket is stored as one number: the time at which it will be full again. A full bucket need not be stored, so
    beyond a hundred thousand buckets the least recently used one is dropped.
    """

    def __init__(self, rules: IntakeRules, clock: Clock = SYSTEM_CLOCK) -> None:
        self._interval = 60.0 / rules.per_minute
        self._tolerance = (rules.burst - 1) * self._interval
        self._clock = clock
        self._full_at: dict[str, float] = {}
        self._lock = threading.Lock()

    def wait_for(self, affiliate_id: str) -> float:
        """Take a token and return 0, or return the seconds until one is available."""
        now = self._clock.monotonic()
        with self._lock:
            full_at = max(now, self._full_at.pop(affiliate_id, now))
            wait = full_at - now - self._tolerance
            # Less than a nanosecond is a rounding error and must not cost a token.
            is_free = wait <= 1e-9
            self._full_at[affiliate_id] = full_at + self._interval if is_free else full_at
            if len(self._full_at) > _MOST_TRACKED:
                del self._full_at[next(iter(self._full_at))]  # the dict is ordered by last use
        return 0.0 if is_free else wait
