"""Circuit breakers whose state is in Redis, so that all processes see the same one."""

from __future__ import annotations

from contextvars import ContextVar
from typing import NamedTuple

from conquiet.coordination.state import Script, SharedState
from conquiet.local import BreakerState, CircuitBreaker, CircuitBreakerRegistry

__all__ = ["SharedBreaker", "SharedBreakerRegistry"]

_SCRIPT = Script("breaker.lua")

# What allowed the calls of this thread or asyncio task: by breaker, the number of openings at that time; below 0, the
# number of the outage in which this process allowed it by itself.
_TICKETS: ContextVar[dict[int, int]] = ContextVar("conquiet_breaker_tickets")


class _Copy(NamedTuple):
    state: BreakerState
    openings: int
    until: float  # monotonic


class SharedBreaker(CircuitBreaker):
    """A `CircuitBreaker` whose state is in Redis; itself the breaker that decides while Redis is away.

    In each outage of Redis it starts closed: what it knew in an earlier one says nothing about the platform now.

    Each call is one step on the server. While the breaker is closed or open, `allow` and `state` use a copy that is at
    most `copy_seconds` old, so that a call to a platform costs one step: that of its result. Trials are never decided by a copy.
    """

    def __init__(
        self,
        state: SharedState,
        failure_threshold: int = 5,
        open_cooldown_seconds: float = 300.0,
        half_open_probe_count: int = 3,
        name: str = "",
    ) -> None:
        super().__init__(
            failure_threshold, open_cooldown_seconds, half_open_probe_count, clock=state.clock, name=name
        )
        self._shared = state
        self._copy: _Copy | None = None
        self._outage = 0  # the outage that the state of this process belongs to

    @property
    def state(self) -> BreakerState:
        copy = self._fresh_copy()
        if copy is not None and copy.state is not BreakerState.HALF_OPEN:
            return copy.state
        if self._step("look") is None or self._copy is None:
            self._be_alone()
            return super().state
        return self._copy.state

    def allow(self) -> bool:
        copy = self._fresh_copy()
        if copy is not None and copy.state is BreakerState.OPEN:
            return False
        if copy is not None and copy.state is BreakerState.CLOSED:
            self._hand_out(copy.openings)
            return True
        allowed = self._step("allow")
        if allowed is None:
            self._hand_out(-self._be_alone())
            return super().allow()
        if allowed and self._copy is not None:
            self._hand_out(self._copy.openings)
        return allowed

    def record_success(self) -> None:
        ticket = self._taken_back()
        if not self._tell("success", ticket):
            super().record_success()

    def record_failure(self, rate_limited: bool = False) -> None:
        ticket = self._taken_back()
        if not self._tell("failure", ticket, rate_limited):
            super().record_failure(rate_limited)

    def _tell(self, call: str, ticket: int | None, rate_limited: bool = False) -> bool:
        """Tell Redis the result of a call. Return False if it is a result for the breaker of this process."""
        if ticket is not None and ticket < 0:
            return -ticket != self._be_alone()  # allowed in an earlier outage: nobody counts it
        if self._step(call, ticket, rate_limited) is not None:
            return True
        self._be_alone()
        return False

    def _be_alone(self) -> int:
        """Start closed if this is another outage than before; return its number."""
        with self._lock:
            if self._outage != self._shared.outages:
                self._outage = self._shared.outages
                self._begin()
            return self._outage

    def _step(self, call: str, ticket: int | None = None, rate_limited: bool = False) -> bool | None:
        """Run one step on the server; return whether it allows a call, or None if Redis is away."""
        answer = self._shared.run(
            _SCRIPT,
            "breaker",
            self.name,
            call,
            self.failure_threshold,
            round(self.open_cooldown_seconds * 1_000_000),
            self.half_open_probe_count,
            "" if ticket is None else ticket,
            int(rate_limited),
        )
        if answer is None:
            self._copy = None
            return None
        allowed, before, state, openings, failures, rate_limits, left = answer
        was, now_is = BreakerState(_text(before)), BreakerState(_text(state))
        valid = self._shared.copy_seconds
        if now_is is BreakerState.OPEN:
            valid = min(valid, left / 1_000_000)  # the first trial is not late
        self._copy = _Copy(now_is, openings, self._shared.clock.monotonic() + valid)
        if was is not now_is:  # logged by the process whose call changed it
            self._say_change(was, now_is, failures, rate_limits)
        return bool(allowed)

    def _fresh_copy(self) -> _Copy | None:
        copy = self._copy
        return copy if copy is not None and self._shared.clock.monotonic() < copy.until else None

    def _hand_out(self, ticket: int) -> None:
        # A new dict each time: tasks that were started from here have the old one.
        _TICKETS.set({**_TICKETS.get({}), id(self): ticket})

    def _taken_back(self) -> int | None:
        """The ticket of the call whose result is recorded; None if `allow` was called elsewhere."""
        tickets = dict(_TICKETS.get({}))
        ticket = tickets.pop(id(self), None)
        if ticket is not None:
            _TICKETS.set(tickets)
        return ticket


class SharedBreakerRegistry(CircuitBreakerRegistry):
    """One shared breaker per platform. All processes should have the same settings: each applies its own."""

    def __init__(
        self,
        state: SharedState,
        failure_threshold: int = 5,
        open_cooldown_seconds: float = 300.0,
        half_open_probe_count: int = 3,
    ) -> None:
        super().__init__(failure_threshold, open_cooldown_seconds, half_open_probe_count, state.clock)
        self._shared = state

    def _create(self, name: str) -> CircuitBreaker:
        threshold, cooldown, probes, _ = self._settings
        return SharedBreaker(self._shared, threshold, cooldown, probes, name)


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value  # a client may decode
