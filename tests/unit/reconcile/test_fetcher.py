"""Asking platforms: breakers are consulted, failures are data, adapters come only from code."""

from __future__ import annotations

import logging
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from conquiet.errors import PlatformAuthError, PlatformError, PlatformRateLimitError
from conquiet.local import GLOBAL_CIRCUIT_BREAKER, BreakerState, CircuitBreakerRegistry
from conquiet.reconcile import (
    ADAPTERS,
    AdapterRegistry,
    FetchError,
    HttpAdapter,
    Metrics,
    Observation,
    PlatformAdapter,
    PlatformFetcher,
    ReconcileConfigError,
    SimulatedAdapter,
)
from conquiet.testing import ManualClock


class Moody(PlatformAdapter):
    """Returns or raises what it was given, in turn, and counts its calls."""

    def __init__(self, *moods: BaseException | Metrics) -> None:
        self.moods = list(moods)
        self.calls = 0

    def fetch(self, post_id: str) -> Observation:
        self.calls += 1
        mood = self.moods.pop(0)
        if isinstance(mood, BaseException):
            raise mood
        return Observation(mood)


FINE = Metrics(1, 2, 3)


def fetcher(adapter: PlatformAdapter, clock: ManualClock, **settings: Any) -> PlatformFetcher:
    breakers = CircuitBreakerRegistry(clock=clock, **settings)
    return PlatformFetcher({"instagram": adapter}, breakers=breakers, clock=clock)


@pytest.mark.parametrize(
    ("mood", "code", "detail", "may_be_retried"),
    [
        (PlatformError("down"), FetchError.FETCH_ERROR, "down", True),
        (PlatformRateLimitError("slow", 30.0), FetchError.RATE_LIMITED, "slow", True),
        (PlatformAuthError("who?"), FetchError.AUTH_ERROR, "who?", False),
        (KeyError("bug"), FetchError.FETCH_ERROR, "the adapter raised KeyError", True),
    ],
)
def test_every_failure_is_an_outcome(
    mood: Exception, code: FetchError, detail: str, may_be_retried: bool, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    outcome = fetcher(Moody(mood), clock).fetch("instagram", "p1")
    assert (outcome.error_code, outcome.detail, outcome.may_be_retried) == (code, detail, may_be_retried)
    assert outcome.metrics == Metrics(None, None, None)
    assert outcome.observed_at.timestamp() == clock.time()
    assert outcome.retry_after == (30.0 if code is FetchError.RATE_LIMITED else None)
    bugs = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(bugs) == isinstance(mood, KeyError)  # a bug is logged


@pytest.mark.parametrize(
    "answer",
    [
        Observation(Metrics(-1, 0, 0)),
        Observation(Metrics(1, 2**63, 0)),
        Observation(Metrics(1, 1, 1.5)),  # type: ignore[arg-type]
        Observation(Metrics(1, 1, True)),
        Observation(Metrics(1, 1, 1), datetime(2026, 1, 31)),
        Observation((1, 2)),  # type: ignore[arg-type]
        None,
    ],
    ids=range(7),
)
def test_what_no_adapter_may_return_is_a_failure(answer: Any) -> None:
    class Odd(PlatformAdapter):
        def fetch(self, post_id: str) -> Observation:
            return answer

    outcome = fetcher(Odd(), ManualClock()).fetch("instagram", "p1")
    assert (outcome.error_code, outcome.metrics) == (FetchError.FETCH_ERROR, Metrics(None, None, None))


@pytest.mark.parametrize("text", ["postgresql://app:hunter2@db/x", "token=hunter2", "token = 'hunter2 x'"])
def test_details_hold_no_passwords_and_nothing_a_database_cannot_hold(text: str) -> None:
    clock = ManualClock()
    detail = (
        fetcher(Moody(PlatformError(text + "\0\ud800" + "x" * 5_000)), clock).fetch("instagram", "p").detail
    )
    assert "hunter2" not in detail
    assert "\0" not in detail
    assert len(detail.encode()) <= 1_100


@pytest.mark.clause("W-18")
def test_an_open_breaker_means_that_no_call_is_made() -> None:
    clock = ManualClock()
    adapter = Moody(
        *[PlatformError("down")] * 3, PlatformRateLimitError("slow"), PlatformAuthError("?"), FINE, FINE
    )
    asked = fetcher(adapter, clock)
    codes = [asked.fetch("instagram", "p1").error_code for _ in range(7)]
    assert codes == ["fetch_error"] * 3 + ["rate_limited", "auth_error"] + ["circuit_open"] * 2
    assert adapter.calls == 5  # rate limits and refused credentials count as failures, too
    clock.advance(299.9)
    assert asked.fetch("instagram", "p1").error_code == "circuit_open"
    clock.advance(0.1)
    assert asked.fetch("instagram", "p1").metrics == FINE  # a trial call, which closes the breaker
    assert asked.fetch("instagram", "p1").metrics == FINE
    assert adapter.calls == 7


@pytest.mark.clause("W-18")
def test_a_success_resets_the_count_and_platforms_have_a_breaker_each() -> None:
    clock = ManualClock()
    down, up = Moody(*[PlatformError("down")] * 4, FINE, *[PlatformError("down")] * 5), Moody(FINE, FINE)
    asked = PlatformFetcher(
        {"down": down, "up": up}, breakers=CircuitBreakerRegistry(clock=clock), clock=clock
    )
    for _ in range(10):
        asked.fetch("down", "p1")
    assert down.calls == 10
    assert asked.fetch("down", "p1").error_code == "circuit_open"
    assert asked.fetch("up", "p1").error_code is None


@pytest.mark.clause("W-18")
def test_the_global_breakers_are_the_default() -> None:
    GLOBAL_CIRCUIT_BREAKER.reset()
    adapter = Moody(*[PlatformError("down")] * 5)
    asked = PlatformFetcher({"instagram": adapter})
    for _ in range(6):
        last = asked.fetch("instagram", "p1")
    assert last.error_code == FetchError.CIRCUIT_OPEN
    assert adapter.calls == 5
    assert GLOBAL_CIRCUIT_BREAKER.for_platform("instagram").state is BreakerState.OPEN
    GLOBAL_CIRCUIT_BREAKER.reset()


@pytest.mark.clause("W-28")
def test_a_platform_in_data_imports_and_runs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trap = tmp_path / "trap_module.py"
    trap.write_text("open('sprung', 'w').close()\nclass Adapter: pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    before = set(sys.modules)
    clock = ManualClock()
    breakers = CircuitBreakerRegistry(clock=clock)
    asked = PlatformFetcher({"instagram": Moody()}, breakers=breakers, clock=clock)
    for name in (
        "trap_module",
        "trap_module:Adapter",
        "trap_module.Adapter",
        "../trap_module.py",
        "__import__('os')",
    ):
        outcome = asked.fetch(name, "p1")
        assert (outcome.error_code, outcome.may_be_retried) == (FetchError.FETCH_ERROR, True)
        assert outcome.detail == "there is no adapter for this platform; known platforms are: instagram"
        with pytest.raises(
            ReconcileConfigError, match="there is no adapter .*; registered are: http, simulated"
        ):
            PlatformFetcher.from_settings({"instagram": {"adapter": name}})
    assert breakers.states() == {}  # unknown platforms do not fill the registry of breakers
    assert "trap_module" not in set(sys.modules) - before
    assert not (tmp_path / "sprung").exists()


@pytest.mark.clause("W-28")
@pytest.mark.parametrize(
    "thing", ["simulated", "trap_module:Adapter", object, dict, lambda: None, SimulatedAdapter()]
)
def test_only_adapter_classes_are_registered(thing: Any) -> None:
    registry = AdapterRegistry()
    with pytest.raises(ReconcileConfigError, match="must be a subclass of PlatformAdapter"):
        registry.register("thing", thing)
    assert registry.names == ()
    if not isinstance(thing, PlatformAdapter):
        with pytest.raises(ReconcileConfigError, match="needs a PlatformAdapter"):
            PlatformFetcher({"instagram": thing})


def test_adapters_are_made_of_settings_by_registered_name() -> None:
    registry = AdapterRegistry({"moody": Moody})
    registry.register("moody", Moody)  # registering the same class again is no conflict
    with pytest.raises(ReconcileConfigError, match="an adapter named 'moody' is already registered"):
        registry.register("moody", SimulatedAdapter)
    assert ADAPTERS.names == ("http", "simulated")
    asked = PlatformFetcher.from_settings(
        {
            "tiktok": {"adapter": "simulated", "seed": 4},
            "x": {"adapter": "http", "base_url": "http://localhost/"},
        },
        breakers=CircuitBreakerRegistry(),
    )
    assert asked.platforms == ("tiktok", "x")
    assert asked.fetch("tiktok", "p1").metrics == SimulatedAdapter(4).truth("p1")
    with pytest.raises(ReconcileConfigError, match="settings of adapter 'http' do not fit: .*base_uri"):
        PlatformFetcher.from_settings({"x": {"adapter": "http", "base_uri": "http://localhost/"}})


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"base_url": "ftp://localhost/"}, "base_url must be http"),
        ({"base_url": "http:///posts"}, "with a host"),
        ({"base_url": "http://app:hunter2@localhost/"}, "must not contain credentials"),
        ({"base_url": "http://localhost/", "token": "hunter2\r\nX-Evil: 1"}, "token must be printable ASCII"),
        ({"base_url": "http://localhost/", "timeout_seconds": 0}, "timeout_seconds must be above 0"),
    ],
)
def test_http_settings_are_checked_and_not_repeated(settings: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ReconcileConfigError, match=complaint) as refused:
        HttpAdapter(**settings)
    assert "hunter2" not in str(refused.value)


def test_an_adapter_that_wants_to_exit_has_a_bug(caplog: pytest.LogCaptureFixture) -> None:
    outcome = fetcher(Moody(SystemExit(3)), ManualClock()).fetch("instagram", "p1")
    assert (outcome.error_code, outcome.detail) == (FetchError.FETCH_ERROR, "the adapter raised SystemExit")
    assert "must not raise" in caplog.text
