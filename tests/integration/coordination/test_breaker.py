"""A breaker shared through Redis: the protocol of the local one, for several processes."""

from __future__ import annotations

import contextvars
import logging
import random
import threading

import pytest
import redis

from conquiet.coordination import SharedBreaker, SharedBreakerRegistry, SharedState
from conquiet.errors import LocalConfigError
from conquiet.local import BreakerState, CircuitBreaker
from conquiet.testing import ManualClock
from tests.integration.coordination.member import members

CLOSED, OPEN, HALF_OPEN = BreakerState.CLOSED, BreakerState.OPEN, BreakerState.HALF_OPEN


@pytest.mark.clause("W-31")
@pytest.mark.parametrize("copy_seconds", [0.0, 1.0])
@pytest.mark.parametrize("round_", range(5))
def test_it_answers_like_the_local_one(
    redis_url: str, clock: ManualClock, copy_seconds: float, round_: int
) -> None:
    """Random calls at random times; after each, both breakers have the same state."""
    draws = random.Random(round_)
    shared_state = SharedState(redis_url, clock=clock, copy_seconds=copy_seconds, timeout_seconds=60)
    local, shared = CircuitBreaker(3, 10.0, 2, clock), SharedBreaker(shared_state, 3, 10.0, 2, name="clips")
    seen = set()
    for _ in range(400):
        match draws.choice(["allow", "allow", "success", "failure", "failure", "limit", "wait"]):
            case "allow":
                assert shared.allow() == local.allow()
            case "success":
                shared.record_success()
                local.record_success()
            case "failure":
                shared.record_failure()
                local.record_failure()
            case "limit":
                shared.record_failure(rate_limited=True)
                local.record_failure(rate_limited=True)
            case "wait":
                clock.advance(draws.choice([0.25, 1.0, 5.0, 10.0]))
        assert shared.state == local.state
        seen.add(shared.state)
    assert seen == {CLOSED, OPEN, HALF_OPEN}
    assert not shared_state.is_away
    shared_state.close()


@pytest.mark.clause("W-31")
def test_processes_count_failures_and_trials_together(redis_url: str) -> None:
    with members(3, redis_url) as (one, two, three):
        for member in (one, two, one, three):
            assert member.ask("allow") == 1
            member.ask("failure")
        assert [member.ask("state") for member in (one, two, three)] == ["CLOSED"] * 3
        assert two.ask("allow") == 1
        two.ask("failure")  # the fifth in a row
        for member in (one, two, three):
            member.ask("advance", 1.0)  # a copy is at most a second old
            assert member.ask("state") == "OPEN"
            assert member.ask("allow") == 0
        for member in (one, two, three):
            member.ask("advance", 299.0)
        for member in (one, two, three):  # at the same time
            member.send("allow", 20)
        assert sum(member.receive() for member in (one, two, three)) == 3
        assert [member.ask("state") for member in (one, two, three)] == ["HALF_OPEN"] * 3
        one.ask("success")
        assert [member.ask("state") for member in (one, two, three)] == ["CLOSED"] * 3
        told = [line for member in (one, two, three) for line in member.ask("log")]
        changes = sorted(line.partition(" after")[0] for line in told)  # each is logged by one process
        assert changes == [
            f"circuit breaker clips: {change}"
            for change in ("CLOSED -> OPEN", "HALF_OPEN -> CLOSED", "OPEN -> HALF_OPEN")
        ]


@pytest.mark.clause("W-31")
def test_a_success_in_one_process_resets_the_count_of_all(redis_url: str) -> None:
    with members(2, redis_url) as (one, two):
        for _ in range(3):
            for _ in range(4):
                one.ask("failure")
            two.ask("success")
        assert one.ask("state") == two.ask("state") == "CLOSED"


@pytest.mark.clause("W-31")
def test_without_a_clock_the_time_is_the_servers(redis_url: str) -> None:
    with members(2, redis_url, "server") as (one, two):
        for _ in range(5):
            one.ask("failure")
        assert one.ask("allow") == 0
        while one.ask("state") != "HALF_OPEN":  # after half a second of the server
            pass
        assert one.ask("allow") == 1
        one.ask("success")
        while two.ask("allow") != 1:  # for a second it may still have its copy
            pass
        assert two.ask("state") == "CLOSED"


@pytest.mark.clause("W-31")
@pytest.mark.parametrize("late", ["record_success", "record_failure"])
def test_a_call_from_before_it_opened_decides_nothing(
    state: SharedState, clock: ManualClock, late: str
) -> None:
    """Not even while a trial is running."""
    breaker = SharedBreaker(state, name="clips")
    slow = contextvars.copy_context()
    assert slow.run(breaker.allow)
    for _ in range(5):
        assert breaker.allow()
        breaker.record_failure()
    assert breaker.state is OPEN
    clock.advance(300)
    assert breaker.allow()  # a trial
    slow.run(getattr(breaker, late))
    assert breaker.state is HALF_OPEN
    breaker.record_success()
    assert breaker.state is CLOSED


@pytest.mark.clause("W-31")
def test_one_step_for_each_call_to_a_platform(redis_url: str, state: SharedState, clock: ManualClock) -> None:
    """Whether a call is allowed is known from the step of the last result, or from one step a second."""
    breaker = SharedBreaker(state, name="clips")
    with redis.Redis.from_url(redis_url) as client:

        def steps() -> int:
            stats = client.info("commandstats")
            return int(sum(stats.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("eval", "evalsha")))

        assert breaker.allow()
        before = steps()
        for _ in range(50):
            assert breaker.allow()
            breaker.record_success()
        assert steps() - before == 50
        for _ in range(5):
            breaker.record_failure()
        before = steps()
        for _ in range(10):
            assert not any(breaker.allow() for _ in range(100))
            clock.advance(1.0)
        assert 9 <= steps() - before <= 10


@pytest.mark.clause("W-31")
def test_fifty_threads_get_three_trials(state: SharedState, clock: ManualClock) -> None:
    breaker = SharedBreaker(state, name="clips")
    for _ in range(5):
        breaker.record_failure()
    clock.advance(300)
    gate = threading.Barrier(50)
    allowed: list[bool] = []

    def call() -> None:
        gate.wait(60)
        allowed.extend(breaker.allow() for _ in range(5))

    threads = [threading.Thread(target=call, daemon=True) for _ in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert (len(allowed), sum(allowed)) == (250, 3)


@pytest.mark.clause("W-31")
def test_a_server_that_lost_its_data_has_closed_breakers(
    redis_url: str, state: SharedState, clock: ManualClock
) -> None:
    breaker = SharedBreaker(state, name="clips")
    for _ in range(5):
        breaker.record_failure()
    with redis.Redis.from_url(redis_url) as client:
        client.flushall()
        client.script_flush()
    clock.advance(1.0)
    assert breaker.allow()
    breaker.record_success()
    assert breaker.state is CLOSED


@pytest.mark.clause("W-31")
def test_a_clock_that_is_set_back_costs_at_most_one_cooldown(redis_url: str) -> None:
    for start in (1_700_000_000.0, 1_600_000_000.0):
        clock = ManualClock(start)
        state = SharedState(redis_url, clock=clock, timeout_seconds=60)
        breaker = SharedBreaker(state, name="clips")
        for _ in range(5):
            breaker.record_failure()
        assert breaker.state is OPEN
        state.close()
    clock.advance(300)
    state = SharedState(redis_url, clock=clock, timeout_seconds=60)
    assert SharedBreaker(state, name="clips").state is HALF_OPEN
    state.close()


@pytest.mark.clause("W-31")
def test_a_registry_has_one_breaker_per_platform_and_a_key_each(
    redis_url: str, state: SharedState, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "conquiet")
    registry = SharedBreakerRegistry(state, failure_threshold=1)
    assert registry.for_platform("clips") is registry.for_platform("clips")
    registry.for_platform("clips").record_failure(rate_limited=True)
    assert registry.for_platform("photos").allow()
    assert registry.states() == {"clips": OPEN, "photos": CLOSED}
    assert "clips: CLOSED -> OPEN after 1 failures in a row, 1 of them rate limits" in caplog.text
    with redis.Redis.from_url(redis_url) as client:
        assert client.keys() == [b"conquiet:breaker:clips"]
        assert 0 < client.ttl("conquiet:breaker:clips") <= 86_400
    with pytest.raises(LocalConfigError, match="failure_threshold"):
        SharedBreakerRegistry(state, failure_threshold=0)
