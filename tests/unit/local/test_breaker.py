"""Circuit breakers, on a clock that the test moves."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from conquiet.local import (
    GLOBAL_CIRCUIT_BREAKER,
    BreakerState,
    CircuitBreaker,
    CircuitBreakerRegistry,
    LocalConfigError,
)
from conquiet.testing import ManualClock

CLOSED, OPEN, HALF_OPEN = BreakerState.CLOSED, BreakerState.OPEN, BreakerState.HALF_OPEN


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def breaker(clock: ManualClock) -> CircuitBreaker:
    return CircuitBreaker(clock=clock)


def fail(breaker: CircuitBreaker, times: int, rate_limited: bool = False) -> None:
    for _ in range(times):
        assert breaker.allow()
        breaker.record_failure(rate_limited)


@pytest.mark.clause("W-17")
def test_the_defaults_and_the_names_of_the_states() -> None:
    breaker = CircuitBreaker()
    assert breaker.failure_threshold == 5
    assert breaker.open_cooldown_seconds == 300
    assert breaker.half_open_probe_count == 3
    assert breaker.state == "CLOSED"
    assert [str(state) for state in BreakerState] == ["CLOSED", "OPEN", "HALF_OPEN"]


@pytest.mark.clause("W-17")
def test_as_many_failures_in_a_row_as_the_threshold_open_it(breaker: CircuitBreaker) -> None:
    fail(breaker, 4)
    assert breaker.state is CLOSED
    fail(breaker, 1)
    assert breaker.state is OPEN
    assert not breaker.allow()


@pytest.mark.clause("W-17")
def test_a_success_in_between_resets_the_count(breaker: CircuitBreaker) -> None:
    for _ in range(3):
        fail(breaker, 4)
        breaker.record_success()
    assert breaker.state is CLOSED
    fail(breaker, 5)
    assert breaker.state is OPEN


@pytest.mark.clause("W-17")
def test_rate_limits_count_as_failures(breaker: CircuitBreaker, caplog: pytest.LogCaptureFixture) -> None:
    fail(breaker, 3)
    fail(breaker, 2, rate_limited=True)
    assert breaker.state is OPEN
    assert "CLOSED -> OPEN after 5 failures in a row, 2 of them rate limits" in caplog.text


@pytest.mark.clause("W-17")
def test_calls_are_denied_until_the_cooldown_is_over(breaker: CircuitBreaker, clock: ManualClock) -> None:
    fail(breaker, 5)
    clock.advance(299.75)
    assert not breaker.allow()
    assert breaker.state is OPEN
    clock.advance(0.25)
    assert breaker.state is HALF_OPEN
    assert breaker.allow()


@pytest.mark.clause("W-17", "W-19")
def test_half_open_allows_so_many_trials_and_no_more(breaker: CircuitBreaker, clock: ManualClock) -> None:
    fail(breaker, 5)
    clock.advance(300)
    assert [breaker.allow() for _ in range(6)] == [True, True, True, False, False, False]
    assert breaker.state is HALF_OPEN


@pytest.mark.clause("W-17")
def test_a_trial_that_succeeds_closes_it(breaker: CircuitBreaker, clock: ManualClock) -> None:
    fail(breaker, 5)
    clock.advance(300)
    assert breaker.allow()
    breaker.record_success()
    assert breaker.state is CLOSED
    fail(breaker, 4)  # the count has started again
    assert breaker.state is CLOSED


@pytest.mark.clause("W-17")
def test_a_trial_that_fails_opens_it_for_another_cooldown(
    breaker: CircuitBreaker, clock: ManualClock
) -> None:
    fail(breaker, 5)
    clock.advance(300)
    fail(breaker, 1, rate_limited=True)
    assert breaker.state is OPEN
    clock.advance(299.75)
    assert not breaker.allow()
    clock.advance(0.25)
    assert [breaker.allow() for _ in range(4)] == [True, True, True, False]  # all its trials again


@pytest.mark.clause("W-17")
def test_calls_from_before_it_opened_change_nothing(breaker: CircuitBreaker, clock: ManualClock) -> None:
    """Fifty calls are running and five fail. How the others end says nothing about the present."""
    fail(breaker, 5)
    clock.advance(200)
    breaker.record_failure()  # would restart the cooldown
    breaker.record_success()  # would close it
    assert breaker.state is OPEN
    clock.advance(100)
    breaker.record_success()
    breaker.record_failure()
    assert breaker.state is HALF_OPEN
    assert [breaker.allow() for _ in range(4)] == [True, True, True, False]


@pytest.mark.clause("W-17")
@pytest.mark.parametrize("late", ["record_success", "record_failure"])
def test_trials_of_an_earlier_time_change_nothing(
    breaker: CircuitBreaker, clock: ManualClock, late: str
) -> None:
    fail(breaker, 5)
    clock.advance(300)
    assert [breaker.allow() for _ in range(3)] == [True, True, True]
    breaker.record_failure()
    getattr(breaker, late)()  # while it is open
    clock.advance(300)
    getattr(breaker, late)()  # half-open, before any new trial
    assert breaker.state is HALF_OPEN
    assert [breaker.allow() for _ in range(4)] == [True, True, True, False]


def in_a_thread(act: Callable[[], object]) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(act).result(10)


@pytest.mark.clause("W-17")
@pytest.mark.parametrize("result", ["record_success", "record_failure"])
def test_a_call_from_before_it_opened_does_not_decide_a_trial(
    breaker: CircuitBreaker, clock: ManualClock, result: str
) -> None:
    """A slow call was allowed while the breaker was closed, and ends while a trial is running."""
    with ThreadPoolExecutor(1) as slow:  # one thread: the call begins and ends there
        assert slow.submit(breaker.allow).result(10)
        in_a_thread(lambda: fail(breaker, 5))
        clock.advance(300)
        assert breaker.allow()  # the trial
        slow.submit(getattr(breaker, result)).result(10)
        assert breaker.state is HALF_OPEN
        breaker.record_success()
        assert breaker.state is CLOSED
        in_a_thread(lambda: fail(breaker, 4))
        slow.submit(getattr(breaker, result)).result(10)  # nor does it count when the breaker is closed again
        in_a_thread(lambda: fail(breaker, 1))
        assert breaker.state is OPEN


@pytest.mark.clause("W-17")
def test_tasks_of_one_thread_are_told_apart(breaker: CircuitBreaker, clock: ManualClock) -> None:
    async def slow(ended: asyncio.Event) -> None:
        assert breaker.allow()
        await ended.wait()
        breaker.record_success()

    async def scenario() -> None:
        ended = asyncio.Event()
        old = asyncio.create_task(slow(ended))
        await asyncio.sleep(0)
        await asyncio.to_thread(fail, breaker, 5)
        clock.advance(300)
        assert breaker.allow()
        ended.set()
        await old
        assert breaker.state is HALF_OPEN

    asyncio.run(scenario())


@pytest.mark.clause("W-17")
def test_a_trial_may_be_recorded_by_another_thread(breaker: CircuitBreaker, clock: ManualClock) -> None:
    in_a_thread(lambda: fail(breaker, 5))
    clock.advance(300)
    assert breaker.allow()
    in_a_thread(breaker.record_success)
    assert breaker.state is CLOSED


@pytest.mark.clause("W-19")
def test_a_trial_that_never_returns_frees_its_place_after_the_cooldown(
    breaker: CircuitBreaker, clock: ManualClock
) -> None:
    fail(breaker, 5)
    clock.advance(300)
    assert breaker.allow()
    clock.advance(100)
    assert [breaker.allow() for _ in range(3)] == [True, True, False]
    clock.advance(199.75)
    assert not breaker.allow()
    clock.advance(0.25)  # the first trial has not reported for a whole cooldown
    assert [breaker.allow() for _ in range(2)] == [True, False]
    clock.advance(100)
    assert [breaker.allow() for _ in range(3)] == [True, True, False]
    breaker.record_success()
    assert breaker.state is CLOSED


@pytest.mark.clause("W-19")
@pytest.mark.parametrize("round_", range(20))
def test_fifty_callers_at_once_get_three_trials(round_: int) -> None:
    clock = ManualClock()
    breaker = CircuitBreaker(clock=clock)
    fail(breaker, 5)
    clock.advance(300)
    gate = threading.Barrier(50)
    allowed: list[bool] = []

    def call() -> None:
        gate.wait(10)
        allowed.extend(breaker.allow() for _ in range(20))

    threads = [threading.Thread(target=call, daemon=True) for _ in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert (len(allowed), sum(allowed)) == (1_000, 3)


@pytest.mark.clause("W-17")
def test_failures_of_many_threads_are_all_counted() -> None:
    breaker = CircuitBreaker(failure_threshold=8 * 500 + 1)

    def work() -> None:
        for _ in range(500):
            breaker.record_failure()

    threads = [threading.Thread(target=work, daemon=True) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert breaker.state is CLOSED
    breaker.record_failure()
    assert breaker.state is OPEN


@pytest.mark.clause("W-17")
def test_each_change_is_logged_once(clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "conquiet.local")
    breaker = CircuitBreakerRegistry(clock=clock).for_platform("tiktok")
    fail(breaker, 5)
    assert [breaker.allow() for _ in range(10)] == [False] * 10
    clock.advance(300)
    assert breaker.allow()
    breaker.record_success()
    changes = [(r.levelname, r.platform, r.state) for r in caplog.records]  # type: ignore[attr-defined]
    assert changes == [
        ("WARNING", "tiktok", "OPEN"),
        ("INFO", "tiktok", "HALF_OPEN"),
        ("INFO", "tiktok", "CLOSED"),
    ]


def test_a_log_handler_may_look_at_the_state(breaker: CircuitBreaker) -> None:
    seen = []

    class Looking(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.append(breaker.state)

    logger, handler = logging.getLogger("conquiet.local"), Looking()
    logger.addHandler(handler)
    try:
        fail(breaker, 5)
    finally:
        logger.removeHandler(handler)
    assert seen == [OPEN]


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"failure_threshold": 0}, "failure_threshold must be an int of at least 1"),
        ({"failure_threshold": 2.5}, "failure_threshold must be an int of at least 1"),
        ({"open_cooldown_seconds": 0}, "open_cooldown_seconds must be a number of seconds, above 0, not 0"),
        (
            {"open_cooldown_seconds": float("nan")},
            "open_cooldown_seconds must be a number of seconds, above 0",
        ),
        ({"half_open_probe_count": 0}, "half_open_probe_count must be an int of at least 1"),
    ],
)
@pytest.mark.parametrize("made", [CircuitBreaker, CircuitBreakerRegistry])
def test_wrong_settings_are_refused_and_named(made: Any, wrong: dict[str, Any], named: str) -> None:
    with pytest.raises(LocalConfigError, match=named):
        made(**wrong)


@pytest.mark.clause("W-17")
def test_a_registry_has_one_breaker_per_platform(clock: ManualClock) -> None:
    registry = CircuitBreakerRegistry(failure_threshold=1, open_cooldown_seconds=60, clock=clock)
    assert registry.for_platform("reddit") is registry.for_platform("reddit")
    registry.for_platform("reddit").record_failure()
    assert registry.for_platform("youtube").allow()
    assert registry.states() == {"reddit": OPEN, "youtube": CLOSED}
    clock.advance(60)
    assert registry.states()["reddit"] is HALF_OPEN
    registry.reset()
    assert registry.states() == {}
    assert registry.for_platform("reddit").allow()
    for nameless in ("", None, 3):
        with pytest.raises(LocalConfigError, match="platform's name"):
            registry.for_platform(nameless)  # type: ignore[arg-type]


@pytest.mark.clause("W-17")
def test_many_threads_get_the_same_breaker() -> None:
    registry, found, gate = CircuitBreakerRegistry(), [], threading.Barrier(20)

    def ask() -> None:
        gate.wait(10)
        found.append(registry.for_platform("instagram"))

    threads = [threading.Thread(target=ask, daemon=True) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(found) == 20
    assert len(set(map(id, found))) == 1


def test_the_global_one_is_a_registry() -> None:
    assert isinstance(GLOBAL_CIRCUIT_BREAKER, CircuitBreakerRegistry)
    name = "a platform of this test's own"
    assert GLOBAL_CIRCUIT_BREAKER.for_platform(name) is GLOBAL_CIRCUIT_BREAKER.for_platform(name)
