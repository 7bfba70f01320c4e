"""A token bucket per affiliate."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from conquiet.reconcile import IntakeRules
from conquiet.reconcile.intake import rate_limit
from conquiet.reconcile.intake.rate_limit import RateLimiter
from conquiet.testing import ManualClock


@pytest.mark.clause("W-25")
def test_a_burst_of_twenty_then_one_a_second() -> None:
    clock = ManualClock()
    limiter = RateLimiter(IntakeRules(), clock)
    assert [limiter.wait_for("ann") for _ in range(20)] == [0.0] * 20
    assert limiter.wait_for("ann") == pytest.approx(1.0)
    clock.advance(0.25)
    assert limiter.wait_for("ann") == pytest.approx(0.75)  # a refused call costs nothing
    clock.advance(0.75)
    assert limiter.wait_for("ann") == 0.0
    assert limiter.wait_for("ann") == pytest.approx(1.0)
    clock.advance(3600)
    assert [limiter.wait_for("ann") for _ in range(21)].count(0.0) == 20  # it never holds more


@pytest.mark.clause("W-25")
def test_affiliates_do_not_pay_for_each_other() -> None:
    limiter = RateLimiter(IntakeRules(burst=1), ManualClock())
    assert limiter.wait_for("ann") == 0.0
    assert limiter.wait_for("ann") > 0.0
    assert limiter.wait_for("bob") == 0.0


def test_it_is_a_token_bucket() -> None:
    """Compared with a textbook token bucket, at random times."""
    draws = random.Random(2)
    clock = ManualClock()
    limiter = RateLimiter(IntakeRules(per_minute=90, burst=4), clock)
    tokens, last = 4.0, 0.0
    allowed = 0
    for _ in range(5_000):
        clock.advance(draws.choice([0.0, draws.uniform(0, 1.0), draws.uniform(0, 3.0)]))
        now = clock.monotonic()
        tokens, last = min(4.0, tokens + (now - last) * 1.5), now
        if abs(tokens - 1) < 1e-6:
            continue  # the result depends on rounding
        wait = limiter.wait_for("ann")
        if tokens >= 1:
            tokens -= 1
            allowed += 1
            assert wait == 0.0
        else:
            assert wait == pytest.approx((1 - tokens) / 1.5)
    assert 1_000 < allowed < 5_000


def test_threads_share_the_tokens() -> None:
    limiter = RateLimiter(IntakeRules(burst=50), ManualClock())
    with ThreadPoolExecutor(8) as pool:
        waits = list(pool.map(limiter.wait_for, ["ann"] * 400))
    assert waits.count(0.0) == 50


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rate_limit, "_MOST_TRACKED", 100)
    limiter = RateLimiter(IntakeRules(burst=1), ManualClock())
    assert limiter.wait_for("ann") == 0.0
    for number in range(1_000):
        limiter.wait_for(f"crowd {number}")
        assert limiter.wait_for("ann") > 0.0  # an affiliate that keeps calling is not forgotten
    assert len(limiter._full_at) == 100
