"""Keys that somebody damaged count as missing; the others are shared as before."""

from __future__ import annotations

import pytest
import redis

from conquiet.coordination import SharedBreaker, SharedPace, SharedRateLimiter, SharedState
from conquiet.local import BreakerState
from conquiet.reconcile import IntakeRules
from conquiet.reconcile.intake.rate_limit import RateLimiter
from conquiet.testing import ManualClock

FIELDS = {"state": "x", "openings": "x", "opened_at": "x", "failures": "x", "rate_limits": "x", "probes": "x"}
FIELDS |= {"spacing": "x", "not_before": "x", "next_at": "x", "booked": "x", "forget_at": "x"}


@pytest.mark.clause("W-31", "W-32")
@pytest.mark.parametrize("damage", ["text", "hash", "list"])
def test_a_damaged_key_ends_no_sharing(
    state: SharedState, redis_url: str, clock: ManualClock, damage: str
) -> None:
    with redis.Redis.from_url(redis_url) as client:
        for kind in ("breaker", "pace", "rate"):
            key = f"conquiet:{kind}:clips"
            if damage == "text":
                client.set(key, "x")
            elif damage == "hash":
                client.hset(key, mapping=FIELDS)
            else:
                client.rpush(key, "x")
    breaker, pace = SharedBreaker(state, failure_threshold=1, name="clips"), SharedPace(state)
    limiter = SharedRateLimiter(state, RateLimiter(IntakeRules(burst=1), clock), per_minute=60, burst=1)
    assert limiter.wait_for("clips") == 0.0
    assert pace.wait_for("clips") == 0.0
    assert pace.asked("clips", 30.0) == 30.0
    assert breaker.allow()
    breaker.record_failure()
    assert not state.is_away
    assert state.outages == 0
    assert breaker.state is BreakerState.OPEN
    assert pace.wait_for("clips") == 30.0
    assert limiter.wait_for("clips") > 0.0
