"""One transaction without a loop goes through the same steps as inside one."""

from __future__ import annotations

import pytest

from tests.parity.task.lifecycle_scenarios import SCENARIOS
from tests.parity.task.scenario import Scenario
from tests.parity.task.script import Script, bad, policy, retry
from tests.parity.task.trace import described
from tests.parity.task.variants import ONE


@pytest.mark.parametrize("variant", ONE)
@pytest.mark.parametrize(
    "scenario",
    [pytest.param(one, id=one.name, marks=pytest.mark.clause("E-01", *one.clauses)) for one in SCENARIOS],
)
def test_the_life_of_one_transaction(scenario: Scenario, variant: str) -> None:
    trace, outcome = ONE[variant](scenario.script, scenario.policy)
    assert trace.lives == {"a": scenario.lives["a"].split("; ")}
    assert described(outcome) == scenario.outcomes


@pytest.mark.clause("E-27")
@pytest.mark.parametrize("variant", ONE)
def test_backoff_after_a_thousand_failures_neither_overflows_nor_stalls(variant: str) -> None:
    script = Script(steps={"a process": (bad("SYSTEM"),) * 1_200})
    trace, outcome = ONE[variant](script, policy(process=retry(1_201, backoff=1, multiplier=10, cap=7)))
    assert outcome.attempts == 1_201
    last = 1 + 7 * 1_199
    assert trace.lives["a"][-2:] == [f"process {last}-{last}", f"success(a!) {last}-{last}"]


@pytest.mark.clause("E-29")
@pytest.mark.parametrize("error", ["Boom", "KeyboardInterrupt"])
@pytest.mark.parametrize("variant", ONE)
def test_what_is_no_exception_is_raised(variant: str, error: str) -> None:
    with pytest.raises(BaseException) as raised:
        ONE[variant](Script(steps={"a process": (bad(error),)}), policy(process=retry(3)))
    assert type(raised.value).__name__ == error
