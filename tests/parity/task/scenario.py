"""A row of the table: a script under a policy, and everything that must be seen of it on both variants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from conquiet.task.mixins.policies import ConsumerPolicy
from tests.parity.task.script import Act, Acts, Script


@dataclass(frozen=True)
class Scenario:
    """Lists are written as text with ";" between items. A field that is None is only compared between the variants."""

    name: str
    clauses: tuple[str, ...]
    policy: ConsumerPolicy
    script: Script
    lives: Mapping[str, str] = field(default_factory=dict)  # by id: its calls, "step(told) from-to !error"
    fetches: str | None = None
    ends: str = ""  # "stop reason fetched/succeeded/failed/unsettled"; "" if there is no report
    outcomes: str | None = None  # all outcomes, as on_outcome sees them
    settled: str | None = None
    released: str = ""
    raised: str | None = None
    ended: float | None = None  # when; threads that were cut off may take half a second longer
    most: int | None = None  # the most in flight at a time
    also_bare: bool = True  # run it again with a connector that cannot settle


def one(
    name: str,
    clauses: tuple[str, ...],
    policy: ConsumerPolicy,
    *,
    life: str,
    outcome: str,
    process: Acts = (),
    success: Acts = (),
    exception: Acts = (),
) -> Scenario:
    """One transaction `a` in a loop that then finds nothing more."""
    failed = " failed " in outcome
    return Scenario(
        name,
        clauses,
        policy,
        Script(
            (Act(returns="a"),),
            {"a process": process, "a success": success, "a exception": exception},
        ),
        lives={"a": life},
        ends=f"drained 1/{int(not failed)}/{int(failed)}/0",
        outcomes=outcome,
        settled=outcome,
    )
