"""The table of scenarios on both variants: each sees what is expected, and their traces are the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import pytest

from tests.campaign import campaign_size
from tests.parity.task import (
    end_scenarios,
    fetch_scenarios,
    lifecycle_scenarios,
    loop_scenarios,
    stop_scenarios,
)
from tests.parity.task.scenario import Scenario
from tests.parity.task.trace import Trace, is_the_end
from tests.parity.task.variants import VARIANTS
from tests.parity.task.virtual import on_virtual_driver

TABLE = [
    *lifecycle_scenarios.SCENARIOS,
    *fetch_scenarios.SCENARIOS,
    *loop_scenarios.SCENARIOS,
    *stop_scenarios.SCENARIOS,
    *end_scenarios.SCENARIOS,
]


def _rows(table: Sequence[Scenario]) -> list[Any]:
    return [pytest.param(row, id=row.name, marks=pytest.mark.clause(*row.clauses)) for row in table]


ROWS = _rows(TABLE)
BARE_ROWS = _rows([scenario for scenario in TABLE if scenario.also_bare])


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("scenario", ROWS)
def test_what_is_expected_is_seen(scenario: Scenario, variant: str) -> None:
    trace = VARIANTS[variant](scenario.script, scenario.policy)
    assert seen(trace, scenario) == expected(scenario)
    assert trace.most <= scenario.policy.loop.concurrency.value
    assert trace.doubled == []
    if scenario.most is not None:
        assert trace.most == scenario.most
    if scenario.ended is not None:
        assert is_the_end(trace.ended, scenario.ended)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("scenario", BARE_ROWS)
def test_a_connector_that_cannot_settle_changes_nothing_else(scenario: Scenario, variant: str) -> None:
    trace = VARIANTS[variant](scenario.script, scenario.policy, bare=True)
    # Such a connector gets no outcomes, and there is no on_outcome.
    assert (trace.settled, trace.shown, trace.released) == (Counter(), Counter(), Counter())
    for name in ("lives", "fetches", "ends", "raised"):
        assert seen(trace, scenario)[name] == expected(scenario)[name]


@pytest.mark.clause("E-01", "E-28")
@pytest.mark.parametrize("scenario", ROWS)
def test_the_two_variants_give_the_same_trace_and_give_it_again(scenario: Scenario) -> None:
    first, second, third, fourth = (
        asdict(variant(scenario.script, scenario.policy))
        for variant in (*VARIANTS.values(), *VARIANTS.values())
    )
    for trace in (first, second, third, fourth):
        # Below the bound, the most in flight depends on timing; threads that are cut off get time to notice.
        del trace["most"], trace["ended"]
    assert first == second
    assert third == first
    assert fourth == second


@pytest.mark.campaign
@pytest.mark.clause("E-01", "E-28")
@pytest.mark.parametrize("scenario", ROWS)
def test_who_of_those_that_could_go_on_does_so_first_makes_no_difference(scenario: Scenario) -> None:
    for seed in range(campaign_size(200)):
        trace = on_virtual_driver(scenario.script, scenario.policy, seed)
        assert seen(trace, scenario) == expected(scenario), f"seed {seed}"
        assert trace.most <= scenario.policy.loop.concurrency.value
        assert trace.doubled == []


def seen(trace: Trace, scenario: Scenario) -> dict[str, object]:
    """The parts of a trace that the scenario specifies."""
    report = trace.report
    parts: dict[str, object] = {
        "lives": trace.lives,
        "ends": ""
        if report is None
        else "{stop_reason} {fetched}/{succeeded}/{failed}/{unsettled}".format(**report),
        "raised": trace.raised,
        "released": trace.released,
        "fetches": trace.fetches if scenario.fetches is not None else None,
        "outcomes": trace.shown if scenario.outcomes is not None else None,
        "settled": trace.settled if scenario.settled is not None else None,
    }
    return parts


def expected(scenario: Scenario) -> dict[str, object]:
    return {
        "lives": {name: _items(life) for name, life in scenario.lives.items()},
        "ends": scenario.ends,
        "raised": scenario.raised,
        "released": Counter(_items(scenario.released)),
        "fetches": None if scenario.fetches is None else _items(scenario.fetches),
        "outcomes": None if scenario.outcomes is None else Counter(_items(scenario.outcomes)),
        "settled": None if scenario.settled is None else Counter(_items(scenario.settled)),
    }


def _items(text: str) -> list[str]:
    return [item.strip() for item in text.split(";") if item.strip()]
