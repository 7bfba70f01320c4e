"""The pace of calls to a platform, kept by several processes together."""

from __future__ import annotations

import random

import pytest
import redis

from conquiet.coordination import SharedPace, SharedState
from conquiet.local import Pace
from conquiet.testing import ManualClock
from tests.integration.coordination.member import members


@pytest.mark.clause("W-34")
@pytest.mark.parametrize("copy_seconds", [0.0, 1.0])
@pytest.mark.parametrize("round_", range(4))
def test_it_answers_like_the_local_one(
    redis_url: str, clock: ManualClock, copy_seconds: float, round_: int
) -> None:
    draws = random.Random(round_)
    state = SharedState(redis_url, clock=clock, copy_seconds=copy_seconds, timeout_seconds=60)
    local, shared = Pace(1.0, 16.0, 100.0, clock), SharedPace(state, 1.0, 16.0, 100.0)
    waited = 0
    for _ in range(400):
        match draws.choice(["wait", "wait", "wait", "asked", "answered", "answered", "pass", "pass"]):
            case "wait":
                expected = local.wait_for("clips")
                waited += expected > 0
                assert shared.wait_for("clips") == pytest.approx(expected, abs=1e-4)
            case "asked":
                after = draws.choice([None, 0.5, 30.0, 500.0])
                assert shared.asked("clips", after) == pytest.approx(local.asked("clips", after), abs=1e-4)
            case "answered":
                local.answered("clips")
                shared.answered("clips")
            case "pass":
                clock.advance(draws.choice([0.25, 1.0, 4.0, 32.0, 100.0]))
        assert shared.spacing("clips") == pytest.approx(local.spacing("clips"), abs=1e-4)
    assert waited > 20
    state.close()


@pytest.mark.clause("W-34")
def test_what_a_platform_asks_one_process_the_others_know(redis_url: str) -> None:
    with members(3, redis_url) as together:
        one, two, three = together
        assert [member.ask("wait", "clips") for member in together] == [0.0] * 3
        assert one.ask("asked", "clips", 30.0) == 30.0
        for member in together:
            member.ask("advance", 1.0)  # that it is not slowed down is remembered for a second
        assert [member.ask("wait", "clips") for member in together] == [29.0, 30.0, 31.0]
        for member in together:
            member.ask("advance", 29.0)
        assert [member.ask("wait", "clips") == 0.0 for member in together] == [True, False, False]
        two.ask("answered", "clips")
        assert three.ask("wait", "clips") == 0.0
        assert any("no longer asks for fewer calls" in line for line in two.ask("log"))


@pytest.mark.clause("W-34")
def test_a_platform_that_never_asks_costs_one_step_a_second(
    redis_url: str, state: SharedState, clock: ManualClock
) -> None:
    pace = SharedPace(state)
    assert pace.wait_for("clips") == 0.0
    with redis.Redis.from_url(redis_url) as client:
        before = client.info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0)
        for _ in range(10):
            for _ in range(50):
                assert pace.wait_for("clips") == 0.0
                pace.answered("clips")
            clock.advance(1.0)
        after = client.info("commandstats")["cmdstat_evalsha"]["calls"]
        assert 9 <= after - before <= 10
        assert client.keys() == []
