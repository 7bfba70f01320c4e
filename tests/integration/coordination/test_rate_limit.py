"""Rates kept by several processes together, through Redis."""

from __future__ import annotations

import random

import pytest
import redis

from conquiet.coordination import SharedRateLimiter, SharedState
from conquiet.reconcile import IntakeRules
from conquiet.reconcile.intake.rate_limit import RateLimiter
from conquiet.testing import ManualClock
from tests.integration.coordination.member import members


def limiter(state: SharedState, rules: IntakeRules = IntakeRules()) -> SharedRateLimiter:  # noqa: B008
    alone = RateLimiter(rules, state.clock)
    return SharedRateLimiter(state, alone, per_minute=rules.per_minute, burst=rules.burst)


@pytest.mark.clause("W-32")
@pytest.mark.parametrize("copy_seconds", [0.0, 1.0])
def test_it_answers_like_the_local_one(redis_url: str, clock: ManualClock, copy_seconds: float) -> None:
    draws = random.Random(3)
    state = SharedState(redis_url, clock=clock, copy_seconds=copy_seconds, timeout_seconds=60)
    rules = IntakeRules(per_minute=90, burst=4)
    shared, local = limiter(state, rules), RateLimiter(rules, clock)
    allowed = 0
    for _ in range(1_000):
        clock.advance(draws.choice([0.0, 0.125, draws.uniform(0, 1.0), draws.uniform(0, 3.0)]))
        name = draws.choice(["ann", "bob", "čeněk"])
        expected = local.wait_for(name)
        assert shared.wait_for(name) == pytest.approx(expected, abs=1e-4)
        allowed += expected == 0.0
    assert 100 < allowed < 1_000
    state.close()


@pytest.mark.clause("W-32")
def test_processes_take_tokens_from_one_bucket(redis_url: str) -> None:
    with members(3, redis_url) as together:
        for member in together:
            member.send("rate", "ann", 15)
        assert sum(member.receive() for member in together) == 20
        assert together[0].ask("rate", "bob") == 1  # affiliates do not pay for each other
        for member in together:
            member.ask("advance", 2.0)
        for member in together:
            member.send("rate", "ann", 15)
        assert sum(member.receive() for member in together) == 2


@pytest.mark.clause("W-32")
def test_an_affiliate_that_is_too_fast_costs_one_step_a_second(
    redis_url: str, state: SharedState, clock: ManualClock
) -> None:
    shared = limiter(state, IntakeRules(per_minute=1, burst=1))
    assert shared.wait_for("ann") == 0.0
    with redis.Redis.from_url(redis_url) as client:

        def steps() -> int:
            return int(client.info("commandstats")["cmdstat_evalsha"]["calls"])

        before = steps()
        for second in range(10):
            waits = [shared.wait_for("ann") for _ in range(50)]
            assert waits == pytest.approx([60.0 - second] * 50)
            clock.advance(1.0)
        assert steps() - before == 10
        clock.advance(50.0)
        assert shared.wait_for("ann") == 0.0


@pytest.mark.clause("W-32")
def test_a_full_bucket_leaves_no_key(redis_url: str) -> None:
    state = SharedState(redis_url, timeout_seconds=60)
    assert limiter(state, IntakeRules(per_minute=60_000, burst=1)).wait_for("ann") == 0.0
    with redis.Redis.from_url(redis_url) as client:
        while client.exists("conquiet:rate:ann"):  # for a millisecond or two
            pass
    state.close()
