"""What several processes of the reconciliation share through Redis."""

from __future__ import annotations

from typing import TYPE_CHECKING

from conquiet.clock import SYSTEM_CLOCK, Clock
from conquiet.errors import ReconcileConfigError
from conquiet.reconcile.intake.desk import Limiter
from conquiet.reconcile.intake.rate_limit import RateLimiter
from conquiet.reconcile.rules import IntakeRules

if TYPE_CHECKING:
    from conquiet.coordination import SharedState

__all__ = ["Sharing", "shared_limiter"]


def shared_limiter(state: SharedState, rules: IntakeRules, clock: Clock = SYSTEM_CLOCK) -> Limiter:
    """Return the rates per affiliate that all processes with this state keep together."""
    from conquiet.coordination import SharedRateLimiter

    alone = RateLimiter(rules, clock)
    return SharedRateLimiter(state, alone, per_minute=rules.per_minute, burst=rules.burst)


class Sharing:
    """The shared state of a service: the given one, or one made for it of a Redis URL and closed with it."""

    def __init__(self, shared: SharedState | str, clock: Clock = SYSTEM_CLOCK) -> None:
        from conquiet.coordination import SharedState

        if not isinstance(shared, str | SharedState):
            raise ReconcileConfigError(f"shared must be a Redis URL or a SharedState, not {shared!r}")
        self._is_ours = isinstance(shared, str)
        self._clock = clock
        self.state = SharedState(shared, clock=clock) if isinstance(shared, str) else shared

    def limiter(self, rules: IntakeRules) -> Limiter:
        return shared_limiter(self.state, rules, self._clock)

    def close(self) -> None:
        if self._is_ours:
            self.state.close()
