"""Random behaviour of tasks and connectors: both variants and a model in plain arithmetic see the same."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from tests.campaign import campaign_size
from tests.parity.task.model import Lives, Loop, Seen
from tests.parity.task.programs import Program, programs
from tests.parity.task.trace import Trace, is_the_end
from tests.parity.task.variants import on_asyncio, on_threads
from tests.parity.task.virtual import on_virtual_driver


def _campaign(size: int) -> Callable[[Any], Any]:
    return settings(
        max_examples=campaign_size(size),
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],
    )


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "conquiet.engine")  # thousands of failures would be logged


@pytest.mark.campaign
@pytest.mark.clause("E-01", "E-04", "E-12", "E-15", "E-16", "E-17", "E-18", "E-27", "E-28")
def test_one_worker_does_what_arithmetic_says() -> None:
    @_campaign(5_000)
    @given(programs())
    def agree(program: Program) -> None:
        model = Loop(program.script, program.policy).run()
        for variant in (on_asyncio, on_threads):
            trace = variant(program.script, program.policy)
            assert _seen(trace) == model
            assert is_the_end(trace.ended, model.ended)

    agree()


@pytest.mark.campaign
@pytest.mark.clause("E-01", "E-13", "E-14", "E-19", "E-21", "E-28")
def test_many_workers_live_each_life_as_arithmetic_says() -> None:
    @_campaign(2_000)
    @given(programs(most_workers=6))
    def agree(program: Program) -> None:
        first = on_asyncio(program.script, program.policy)
        second = on_threads(program.script, program.policy)
        third = on_virtual_driver(program.script, program.policy, seed=len(program.script.fetches))
        for trace in (first, second, third):
            lives = Lives(program.script, program.policy)
            assert trace.lives == {
                name: lives.live(name, _begin(lines)).lines for name, lines in trace.lives.items()
            }
            assert trace.most <= program.policy.loop.concurrency.value
            assert trace.doubled == []
        for trace in (first, second, third):
            trace.most = 0  # below the bound, the most in flight depends on timing
            trace.ended = round(trace.ended, 1)  # so does the time that settling takes
        assert first == second == third

    agree()


def _begin(lines: list[str]) -> float:
    return float(lines[0].split(" ")[1].split("-")[0])


def _seen(trace: Trace) -> Seen:
    """A trace in the form of the model."""
    assert trace.report is not None
    report = trace.report
    assert trace.doubled == []
    names = ("fetched", "succeeded", "failed", "unsettled")
    return Seen(
        {name: lines for name, lines in trace.lives.items() if lines},
        trace.fetches,
        trace.shown,
        str(report["stop_reason"]),
        trace.raised,
        Counter({name: report[name] for name in names}),
        Counter(report["by_category"]),
    )
