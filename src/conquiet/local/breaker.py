"""Circuit breakers: after repeated failures a platform is not called for a while, then tried with a few calls."""

from __future__ import annotations

import logging
import threading
from enum import StrEnum

from conquiet.checks import checked_int, checked_seconds
from conquiet.clock import SYSTEM_CLOCK, Clock
from conquiet.errors import LocalConfigError
from conquiet.observe import watch_breaker

__all__ = ["GLOBAL_CIRCUIT_BREAKER", "BreakerState", "CircuitBreaker", "CircuitBreakerRegistry"]

_log = logging.getLogger("conquiet.local")


class BreakerState(StrEnum):
    CLOSED = "CLOSED"  # calls are allowed
    OPEN = "OPEN"  # calls are denied until the cooldown is over
    HALF_OPEN = "HALF_OPEN"  # a few trial calls are allowed; the first result decides


_GAUGE = {BreakerState.CLOSED: 0.0, BreakerState.HALF_OPEN: 1.0, BreakerState.OPEN: 2.0}


class CircuitBreaker:
    """Ask `allow()` before each call and record its result afterwards. Thread-safe.

    `failure_threshold` failures in a row open it for `open_cooldown_seconds`. Then `half_open_probe_count` trial
    calls are allowed: a success closes it, a failure opens it again. A trial without a result after
    one cooldown no longer counts, and another may take its place.

    A result recorded while the breaker is open belongs to an earlier call and changes nothing.
    """

    def __init__(
        self,
        failure_threshold: int = 5,
        open_cooldown_seconds: float = 300.0,
        half_open_probe_count: int = 3,
        clock: Clock = SYSTEM_CLOCK,
        name: str = "",
    ) -> None:
        self.failure_threshold = checked_int(
            "failure_threshold", failure_threshold, 1, error=LocalConfigError
        )
        self.open_cooldown_seconds = checked_seconds(
            "open_cooldown_seconds", open_cooldown_seconds, above_zero=True, error=LocalConfigError
        )
        self.half_open_probe_count = checked_int(
            "half_open_probe_count", half_open_probe_count, 1, error=LocalConfigError
        )
        self.name = name
        self._clock = clock
        self._lock = threading.RLock()  # reentrant: a log handler may read the state
        self._state = BreakerState.CLOSED
        self._failures = 0  # in a row
        self._rate_limits = 0  # how many of these were rate limits
        self._opened_at = 0.0
        self._probes: list[float] = []  # start times of the trials without a result

    @property
    def state(self) -> BreakerState:
        with self._lock:
            self._look_at_clock()
            return self._state

    def allow(self) -> bool:
        """Return whether a call may be made now. After True, `record_success` or `record_failure` must follow."""
        with self._lock:
            now = self._look_at_clock()
            if self._state is not BreakerState.HALF_OPEN:
                return self._state is BreakerState.CLOSED
            heard_of = now - self.open_cooldown_seconds
            self._probes = [begun for begun in self._probes if begun > heard_of]
            if len(self._probes) >= self.half_open_probe_count:
                return False
            self._probes.append(now)
            return True

    def record_success(self) -> None:
        """Record a successful call: it resets the failure count, and a successful trial closes the breaker."""
        with self._lock:
            self._look_at_clock()
            if self._state is BreakerState.OPEN:
                return
            if self._state is BreakerState.HALF_OPEN:
                if not self._probes:
                    return  # no trial is running: the result of a call from before it opened
                self._enter(BreakerState.CLOSED)
            self._failures = self._rate_limits = 0

    def record_failure(self, rate_limited: bool = False) -> None:
        """Record a failed call; `rate_limited` means that a rate limit refused it."""
        with self._lock:
            self._look_at_clock()
            if self._state is BreakerState.OPEN:
                return
            if self._state is BreakerState.HALF_OPEN and not self._probes:
                return
            self._failures += 1
            self._rate_limits += rate_limited
            if self._state is BreakerState.HALF_OPEN or self._failures >= self.failure_threshold:
                self._enter(BreakerState.OPEN)

    def _look_at_clock(self) -> float:
        now = self._clock.monotonic()
        if self._state is BreakerState.OPEN and now - self._opened_at >= self.open_cooldown_seconds:
            self._enter(BreakerState.HALF_OPEN)
        return now

    def _enter(self, state: BreakerState) -> None:
        before, self._state = self._state, state
        self._probes = []
        if state is BreakerState.OPEN:
            self._opened_at = self._clock.monotonic()
        _log.log(
            logging.WARNING if state is BreakerState.OPEN else logging.INFO,
            "circuit breaker %s: %s -> %s after %d failures in a row, %d of them rate limits",
            self.name or "(unnamed)",
            before,
            state,
            self._failures,
            self._rate_limits,
            extra={
                "event": "breaker_state",
                "platform": self.name,
                "state": str(state),
                "failures": self._failures,
            },
        )


class CircuitBreakerRegistry:
    """One breaker per platform, created on first use, all with the same settings."""

    def __init__(
        self,
        failure_threshold: int = 5,
        open_cooldown_seconds: float = 300.0,
        half_open_probe_count: int = 3,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._settings = (failure_threshold, open_cooldown_seconds, half_open_probe_count, clock)
        CircuitBreaker(*self._settings)  # checks the settings now, not at the first platform
        self._lock = threading.Lock()
        self._breakers: dict[str, CircuitBreaker] = {}

    def for_platform(self, name: str) -> CircuitBreaker:
        """Return the breaker of this platform, the same object every time."""
        if type(name) is not str or not name:
            raise LocalConfigError(f"a platform's name must be a non-empty str, not {name!r}")
        with self._lock:
            breaker = self._breakers.get(name)
            if breaker is not None:
                return breaker
            breaker = self._breakers[name] = CircuitBreaker(*self._settings, name=name)
        watch_breaker(name, lambda: _GAUGE[breaker.state])
        return breaker

    def states(self) -> dict[str, BreakerState]:
        """Return the state of every breaker, by platform."""
        with self._lock:
            breakers = dict(self._breakers)
        return {name: breaker.state for name, breaker in breakers.items()}

    def reset(self) -> None:
        """Forget all breakers; for use between tests."""
        with self._lock:
            self._breakers.clear()


GLOBAL_CIRCUIT_BREAKER = CircuitBreakerRegistry()
