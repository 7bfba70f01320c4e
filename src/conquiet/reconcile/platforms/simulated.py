"""A simulated platform for samples and tests: seeded, with the faults of real platforms."""

from __future__ import annotations

import random
import threading
from collections.abc import Mapping

from conquiet.checks import checked_seconds
from conquiet.clock import SYSTEM_CLOCK, Clock, Parker
from conquiet.errors import PlatformAuthError, PlatformError, PlatformRateLimitError, ReconcileConfigError
from conquiet.reconcile.platforms.adapter import Observation, PlatformAdapter
from conquiet.reconcile.verdict import Metrics

__all__ = ["SimulatedAdapter"]


class SimulatedAdapter(PlatformAdapter):
    """The numbers of a post and its missing fields depend only on `seed` and the post: asking again, or in another
    process, returns the same. `seed` also determines the sequence of failures, call by call.
    """

    def __init__(
        self,
        seed: int = 0,
        *,
        posts: Mapping[str, Metrics] | None = None,
        failure_rate: float = 0.0,
        auth_error_rate: float = 0.0,
        missing_field_rate: float = 0.0,
        unknown_post_rate: float = 0.0,
        calls_per_minute: int | None = None,
        latency_seconds: float = 0.0,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        for name, rate in {
            "failure_rate": failure_rate,
            "auth_error_rate": auth_error_rate,
            "missing_field_rate": missing_field_rate,
            "unknown_post_rate": unknown_post_rate,
        }.items():
            if not 0.0 <= rate <= 1.0:
                raise ReconcileConfigError(f"{name} must be a share from 0 to 1, not {rate!r}")
        self._seed = seed
        self._posts = posts
        self._failure_rate = failure_rate
        self._auth_error_rate = auth_error_rate
        self._missing_field_rate = missing_field_rate
        self._unknown_post_rate = unknown_post_rate
        self._calls_per_minute = calls_per_minute
        self._latency = checked_seconds("latency_seconds", latency_seconds, error=ReconcileConfigError)
        self._clock = clock
        self._faults = random.Random(f"{seed} faults")
        self._lock = threading.Lock()
        self._minute = (0, 0)  # the minute, and the number of calls in it
        self.calls = 0

    def fetch(self, post_id: str) -> Observation:
        with self._lock:
            self.calls += 1
            fault = self._faults.random()
            wait = self._over_the_limit()
        if self._latency:
            self._clock.wait(Parker(), self._latency)
        if wait:
            raise PlatformRateLimitError("the simulated platform allows no more calls this minute", wait)
        if fault < self._failure_rate:
            raise PlatformError("the simulated platform is out of order")
        if fault < self._failure_rate + self._auth_error_rate:
            raise PlatformAuthError("the simulated platform refuses the credentials")
        return Observation(self._shown(post_id))

    def truth(self, post_id: str) -> Metrics:
        """Return the three true numbers of a post, which an honest affiliate would claim."""
        if self._posts is not None:
            return self._posts.get(post_id, Metrics(None, None, None))
        draw = random.Random(f"{self._seed} {post_id}")
        views = int(10 ** draw.uniform(1, 6))
        clicks = int(views * draw.uniform(0.005, 0.12))
        return Metrics(views, clicks, int(clicks * draw.uniform(0.01, 0.2)))

    def _shown(self, post_id: str) -> Metrics:
        draw = random.Random(f"{self._seed} gaps {post_id}")
        if draw.random() < self._unknown_post_rate:
            return Metrics(None, None, None)
        return Metrics(
            *(None if draw.random() < self._missing_field_rate else value for value in self.truth(post_id))
        )

    def _over_the_limit(self) -> float:
        """Count this call, and return the seconds to wait if it exceeds the limit of its minute."""
        if self._calls_per_minute is None:
            return 0.0
        now = self._clock.time()
        minute = int(now // 60)
        calls = self._minute[1] + 1 if self._minute[0] == minute else 1
        self._minute = (minute, calls)
        return (minute + 1) * 60 - now if calls > self._calls_per_minute else 0.0
