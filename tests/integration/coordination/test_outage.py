"""Redis goes away and comes back: processes decide by themselves meanwhile, and say so once."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator

import pytest
from prometheus_client import REGISTRY

from conquiet.coordination import SharedBreaker, SharedPace, SharedRateLimiter, SharedState
from conquiet.embedded import RedisServer
from conquiet.errors import QueueConfigError
from conquiet.local import BreakerState
from conquiet.reconcile import IntakeRules
from conquiet.reconcile.intake.rate_limit import RateLimiter
from conquiet.testing import ManualClock


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with RedisServer() as own:
        yield own


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [
        (record.levelname, record.getMessage())
        for record in caplog.records
        if record.name == "conquiet.coordination"
    ]


def away() -> float:
    value = REGISTRY.get_sample_value("conquiet_shared_state_away")
    assert value is not None
    return value


def alone(kind: str) -> float:
    return REGISTRY.get_sample_value("conquiet_shared_state_alone_total", {"kind": kind}) or 0.0


@pytest.mark.clause("W-31", "W-32", "W-34")
def test_killed_and_started_again(server: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "conquiet.coordination")
    clock, rules = ManualClock(), IntakeRules(burst=2)
    state = SharedState(server.url, clock=clock, timeout_seconds=60)
    assert away() == 0.0
    before = {kind: alone(kind) for kind in ("breaker", "pace", "rate")}  # other tests count, too
    breaker, pace = SharedBreaker(state, name="clips"), SharedPace(state)
    limiter = SharedRateLimiter(state, RateLimiter(rules, clock), per_minute=60, burst=2)
    for _ in range(4):
        assert breaker.allow()
        breaker.record_failure()
    server.kill()
    clock.advance(1.0)

    assert breaker.allow()
    breaker.record_failure()  # the first of the local breaker: Redis would have opened at the fifth
    assert str(breaker.state) == "CLOSED"
    for _ in range(4):
        breaker.record_failure()
    assert str(breaker.state) == "OPEN"
    assert not breaker.allow()
    assert [limiter.wait_for("ann") for _ in range(2)] == [0.0, 0.0]
    assert limiter.wait_for("ann") > 0.0
    assert pace.wait_for("clips") == 0.0
    assert pace.asked("clips", 10.0) == 10.0
    assert pace.wait_for("clips") == 10.0
    for _ in range(3):  # it tries again each second, and says nothing
        clock.advance(1.0)
        assert limiter.wait_for("bob") == 0.0
    assert state.is_away
    assert away() == 1.0
    assert alone("breaker") > before["breaker"]
    assert alone("rate") - before["rate"] == 6
    assert alone("pace") - before["pace"] == 3
    [(level, text)] = lines(caplog)
    assert level == "WARNING"
    assert text.startswith("the shared state in Redis is not available (ConnectionError: ")
    assert text.endswith("until it is, this process decides by itself")

    server.start()
    assert str(breaker.state) == "OPEN"  # not asked again within the second
    clock.advance(1.0)
    assert str(breaker.state) == "CLOSED"  # this server has kept nothing
    assert not state.is_away
    assert away() == 0.0
    assert lines(caplog)[1:] == [("INFO", "the shared state in Redis is available again")]
    state.close()


@pytest.mark.clause("W-31")
def test_a_result_goes_to_the_breaker_that_allowed_the_call(server: RedisServer) -> None:
    """A trial of the local breaker, ended when Redis is back, closes the local one, not the shared one."""
    clock = ManualClock()
    state = SharedState(server.url, clock=clock, timeout_seconds=60)
    other = SharedBreaker(
        SharedState(server.url, clock=clock, timeout_seconds=60, copy_seconds=0), name="clips"
    )
    breaker = SharedBreaker(state, name="clips")
    server.kill()
    for _ in range(5):
        breaker.record_failure()
    clock.advance(300.0)
    assert breaker.allow()
    server.start()
    clock.advance(1.0)
    for _ in range(4):
        other.record_failure()
    breaker.record_success()
    other.record_failure()
    assert other.state is BreakerState.OPEN  # the success did not reset the shared count
    server.kill()
    clock.advance(1.0)
    assert breaker.state is BreakerState.CLOSED  # its own
    for each in (breaker, other):
        each._shared.close()


@pytest.mark.clause("W-31")
def test_a_server_that_hangs_costs_one_timeout_a_second(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    state = SharedState(server.url, clock=clock, timeout_seconds=0.2, retry_seconds=1.0)
    breaker = SharedBreaker(state, name="clips")
    breaker.state  # noqa: B018 - connects
    server.pause()
    clock.advance(1.0)
    begun = time.monotonic()
    for _ in range(1_000):
        assert breaker.allow()
        breaker.record_success()
    took = time.monotonic() - begun
    server.resume()
    assert 0.2 <= took < 60  # two thousand timeouts would be 400 s
    assert len(lines(caplog)) == 1
    while state.is_away:
        clock.advance(1.0)
        breaker.state  # noqa: B018
    state.close()


@pytest.mark.clause("W-31")
def test_a_server_that_refuses_is_away_too_and_no_secret_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with RedisServer(config={"requirepass": "hunter2"}) as server:
        wrong = server.url.replace("hunter2", "swordfish")
        state = SharedState(wrong, timeout_seconds=60)
        breaker = SharedBreaker(state, failure_threshold=1, name="clips")
        assert breaker.allow()
        breaker.record_failure()
        assert not breaker.allow()
        assert state.is_away
        state.close()
        assert away() == 0.0  # one that is closed no longer counts
    assert len(lines(caplog)) == 1
    assert "AuthenticationError" in caplog.text
    assert "swordfish" not in caplog.text


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"prefix": ""}, "prefix must be a non-empty str"),
        ({"timeout_seconds": 0}, "timeout_seconds must be a number of seconds, above 0"),
        ({"copy_seconds": -1}, "copy_seconds"),
        ({"retry_seconds": None}, "retry_seconds"),
        ({"server": "http://localhost"}, "is not a usable Redis URL"),
    ],
)
def test_wrong_settings_are_refused_and_named(settings: dict[str, object], named: str) -> None:
    with pytest.raises(QueueConfigError, match=named):
        SharedState(**{"server": "redis://localhost", **settings})  # type: ignore[arg-type]


@pytest.mark.clause("W-31")
def test_each_outage_starts_with_a_closed_breaker_and_the_full_pace(server: RedisServer) -> None:
    clock = ManualClock()
    state = SharedState(server.url, clock=clock, timeout_seconds=60, copy_seconds=0)
    breaker, pace = SharedBreaker(state, failure_threshold=3, name="clips"), SharedPace(state)
    assert breaker.allow()
    breaker.record_success()
    server.kill()
    for _ in range(3):
        assert breaker.allow()
        breaker.record_failure()
    assert not breaker.allow()
    assert pace.asked("clips", 600.0) == 600.0

    server.start()
    clock.advance(1.0)
    for _ in range(100):
        assert breaker.allow()
        breaker.record_success()
    assert pace.wait_for("clips") == 0.0
    server.kill()

    assert breaker.allow()
    assert state.is_away
    assert breaker.state is BreakerState.CLOSED
    for _ in range(2):  # none of the failures of the first outage counts
        breaker.record_failure()
    assert breaker.allow()
    assert pace.wait_for("clips") == 0.0
    assert state.outages == 2
    state.close()


@pytest.mark.clause("W-31")
def test_a_result_of_an_earlier_outage_counts_in_none(server: RedisServer) -> None:
    clock = ManualClock()
    state = SharedState(server.url, clock=clock, timeout_seconds=60, copy_seconds=0)
    breaker = SharedBreaker(state, failure_threshold=1, name="clips")
    server.kill()
    assert breaker.allow()
    server.start()
    clock.advance(1.0)
    assert SharedPace(state).wait_for("clips") == 0.0  # Redis is back
    server.kill()
    assert SharedPace(state).wait_for("clips") == 0.0
    assert state.outages == 2
    breaker.record_failure()
    assert breaker.state is BreakerState.CLOSED
    state.close()
