"""Whether and when a failed job runs again."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from conquiet.backoff import full_jitter
from conquiet.checks import MAX_INT, MAX_SECONDS, checked_int
from conquiet.errors import JobConfigError

__all__ = ["RetrySchedule"]


@dataclass(frozen=True, slots=True)
class RetrySchedule:
    """A failed job runs again after uniform(0, min(base * 2 ** retries, max)) seconds, at most `max_retries` times.

    `max_retries` is for jobs that are enqueued without a number of their own.
    """

    max_retries: int = 3
    base_seconds: float = 0.5
    max_seconds: float = 30.0

    def __post_init__(self) -> None:
        checked_int("RetrySchedule.max_retries", self.max_retries, 0, MAX_INT, error=JobConfigError)
        for name in ("base_seconds", "max_seconds"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
                raise JobConfigError(
                    f"RetrySchedule.{name} must be a number of seconds, at least 0, not {value!r}"
                )

    def after_failure(
        self, retries: int, max_retries: int, retryable: bool, random: Callable[[], float]
    ) -> float | None:
        """Return in how many seconds a job that has just failed runs again, or None if it does not."""
        return self.delay(retries, random) if retryable and retries < max_retries else None

    def delay(self, retries: int, random: Callable[[], float]) -> float:
        """Return the seconds until a job with this many retries runs again. `random` returns numbers from 0 to 1."""
        delay = full_jitter(self.base_seconds, retries, self.max_seconds, random)
        # full_jitter takes a maximum of 0 as "no maximum"; here it means 0. MAX_SECONDS is the most a store can hold.
        return min(delay, self.max_seconds, MAX_SECONDS)
