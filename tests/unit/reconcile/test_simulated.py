"""The simulated platform."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import pytest

from conquiet.errors import PlatformAuthError, PlatformError, PlatformRateLimitError
from conquiet.reconcile import Metrics, Observation, ReconcileConfigError, SimulatedAdapter
from conquiet.testing import ManualClock


def outcomes(adapter: SimulatedAdapter, count: int) -> list[str]:
    found = []
    for number in range(count):
        try:
            adapter.fetch(f"post {number}")
            found.append("ok")
        except PlatformError as error:
            found.append(type(error).__name__)
    return found


def test_what_a_post_has_depends_on_the_seed_and_the_post_alone() -> None:
    one, two, other = SimulatedAdapter(7), SimulatedAdapter(7), SimulatedAdapter(8)
    posts = [f"post {number}" for number in range(50)]
    assert [one.truth(post) for post in posts] == [two.truth(post) for post in reversed(posts)][::-1]
    assert [one.truth(post) for post in posts] != [other.truth(post) for post in posts]
    assert one.fetch("post 3") == Observation(one.truth("post 3"))
    for post in posts:
        views, clicks, conversions = one.truth(post)
        assert views is not None
        assert clicks is not None
        assert conversions is not None
        assert views >= clicks >= conversions >= 0


def test_another_process_sees_the_same() -> None:
    code = "from conquiet.reconcile import SimulatedAdapter as S; print(*S(7, missing_field_rate=0.5).fetch('p')[0])"
    other = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    here = SimulatedAdapter(7, missing_field_rate=0.5).fetch("p").metrics
    assert other == [str(value) for value in here]


def test_failures_come_at_the_given_rates_and_can_be_repeated() -> None:
    settings: dict[str, Any] = {"failure_rate": 0.2, "auth_error_rate": 0.1}
    first = outcomes(SimulatedAdapter(1, **settings), 2_000)
    assert first == outcomes(SimulatedAdapter(1, **settings), 2_000)
    assert first.count("PlatformError") == pytest.approx(400, abs=60)
    assert first.count(PlatformAuthError.__name__) == pytest.approx(200, abs=50)


def test_fields_and_posts_are_missing_at_the_given_rates() -> None:
    adapter = SimulatedAdapter(1, missing_field_rate=0.3)
    values = [value for number in range(1_000) for value in adapter.fetch(f"post {number}").metrics]
    assert values.count(None) == pytest.approx(900, abs=120)
    assert adapter.fetch("post 1") == adapter.fetch("post 1")
    unknown = SimulatedAdapter(1, unknown_post_rate=1.0)
    assert unknown.fetch("post 1").metrics == Metrics(None, None, None)


def test_its_rate_limit_is_by_the_minute_of_the_clock() -> None:
    clock = ManualClock(start=1_700_000_010.0)  # 30 seconds into a minute of the clock
    adapter = SimulatedAdapter(calls_per_minute=3, clock=clock)
    assert outcomes(adapter, 5) == ["ok"] * 3 + [PlatformRateLimitError.__name__] * 2
    with pytest.raises(PlatformRateLimitError) as limited:
        adapter.fetch("post")
    assert limited.value.retry_after == 30.0
    clock.advance(30.0)
    assert outcomes(adapter, 4) == ["ok"] * 3 + [PlatformRateLimitError.__name__]


def test_its_latency_passes_on_the_clock() -> None:
    clock = ManualClock()
    adapter = SimulatedAdapter(latency_seconds=90.0, clock=clock)
    answers: list[Observation] = []
    asking = threading.Thread(target=lambda: answers.append(adapter.fetch("post")))
    asking.start()
    clock.wait_for_sleepers()
    assert answers == []
    clock.advance(90.0)
    asking.join(10)
    assert len(answers) == 1


def test_posts_can_be_given() -> None:
    adapter = SimulatedAdapter(posts={"p1": Metrics(10, 5, None)})
    assert adapter.fetch("p1").metrics == Metrics(10, 5, None)
    assert adapter.fetch("p2").metrics == Metrics(None, None, None)


def test_rates_are_shares() -> None:
    with pytest.raises(ReconcileConfigError, match="failure_rate must be a share from 0 to 1, not 20"):
        SimulatedAdapter(failure_rate=20)
