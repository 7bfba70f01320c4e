"""Circuit breakers: after repeated failures a platform is not called for a while, then tried with a few calls."""

from __future__ import annotations

import logging
import threading
from contextvars import ContextVar
from enum import StrEnum

from conquiet.checks import checked_int, checked_seconds
from conquiet.clock import SYSTEM_CLOCK, Clock
from conquiet.errors import LocalConfigError
from conquiet.observe import SafeLogger, watch_breaker

__all__ = ["GLOBAL_CIRCUIT_BREAKER", "BreakerState", "CircuitBreaker", "CircuitBreakerRegistry"]

_log = SafeLogger("conquiet.local")

# The last call that was allowed in this thread or task: the mark of its breaker, and how often that had opened.
_ALLOWED: ContextVar[tuple[object, int] | None] = ContextVar("conquiet_breaker_allowed", default=None)


class BreakerState(StrEnum):
    CLOSED = "CLOSED"  # calls are allowed
    OPEN = "OPEN"  # calls are denied until the cooldown is over
    HALF_OPEN = "HALF_OPEN"  # a few trial calls are allowed; the first result decides


class CircuitBreaker:
    """Ask `allow()` before each call and record its result afterwards. Thread-safe.

    `failure_threshold` failures in a row open it for `open_cooldown_seconds`. Then `half_open_probe_count` trial
    calls are allowed: a success closes it, a failure opens it again. A trial without a result after
    one cooldown no longer counts, and another may take its place.

    The result of a call that was allowed before the breaker opened changes nothing. A result belongs to the last call that
    was allowed in the same thread, asyncio task or context; recorded in a context that asked for none, it is taken as current.
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
        self._begin()

    def _begin(self) -> None:
        """Be closed, and know of no call."""
        self._state = BreakerState.CLOSED
        self._failures = 0  # in a row
        self._rate_limits = 0  # how many of these were rate limits
        self._opened_at = 0.0
        self._probes: list[float] = []  # start times of the trials without a result
        self._mark = object()
        self._openings = 0

    @property
    def state(self) -> BreakerState:
        with self._lock:
            self._look_at_clock()
            return self._state

    def allow(self) -> bool:
        """Return whether a call may be made now. After True, `record_success` or `record_failure` must follow."""
        with self._lock:
            now = self._look_at_clock()
            if self._state is BreakerState.OPEN:
                return False
            if self._state is BreakerState.CLOSED:
                _ALLOWED.set((self._mark, self._openings))
                return True
            heard_of = now - self.open_cooldown_seconds
            self._probes = [begun for begun in self._probes if begun > heard_of]
            if len(self._probes) >= self.half_open_probe_count:
                return False
            self._probes.append(now)
            _ALLOWED.set((self._mark, self._openings))
            return True

    def record_success(self) -> None:
        """Record a successful call: it resets the failure count, and a successful trial closes the breaker."""
        with self._lock:
            if self._is_late():
                return
            if self._state is BreakerState.HALF_OPEN:
                self._enter(BreakerState.CLOSED)
            self._failures = self._rate_limits = 0

    def record_failure(self, rate_limited: bool = False) -> None:
        """Record a failed call; `rate_limited` means that a rate limit refused it."""
        with self._lock:
            if self._is_late():
                return
            self._failures += 1
            self._rate_limits += rate_limited
            if self._state is BreakerState.HALF_OPEN or self._failures >= self.failure_threshold:
                self._enter(BreakerState.OPEN)

    def _is_late(self) -> bool:
        """Whether the result that is being recorded is one of a call from before the breaker opened."""
        self._look_at_clock()
        if self._state is BreakerState.OPEN or (self._state is BreakerState.HALF_OPEN and not self._probes):
            return True
        allowed = _ALLOWED.get()
        return allowed is not None and allowed[0] is self._mark and allowed[1] != self._openings

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
            self._openings += 1
        self._say_change(before, state, self._failures, self._rate_limits)

    def _say_change(self, before: BreakerState, state: BreakerState, failures: int, rate_limits: int) -> None:
        _log.log(
            logging.WARNING if state is BreakerState.OPEN else logging.INFO,
            "circuit breaker %s: %s -> %s after %d failures in a row, %d of them rate limits",
            self.name or "(unnamed)",
            before,
            state,
            failures,
            rate_limits,
            extra={
                "event": "breaker_state",
                "platform": self.name,
                "state": str(state),
                "failures": failures,
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
            breaker = self._breakers[name] = self._create(name)
        watch_breaker(name, breaker)
        return breaker

    def _create(self, name: str) -> CircuitBreaker:
        return CircuitBreaker(*self._settings, name=name)

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
