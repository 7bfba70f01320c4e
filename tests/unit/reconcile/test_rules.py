"""The rules are data, with the defaults of the specification, and refuse values that make no sense."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import pytest

from conquiet.reconcile import (
    DEFAULT_RULES,
    AlertRule,
    IntakeRules,
    ReconcileConfigError,
    RetryRule,
    RiskRules,
    Rules,
    Status,
    TrustEvent,
    TrustRules,
)


@pytest.mark.clause("W-23")
def test_the_defaults_are_those_of_the_specification() -> None:
    rules = DEFAULT_RULES
    assert (rules.growth_per_hour, rules.growth_cap_hours) == (0.01, 24.0)
    assert (rules.matched_up_to, rules.low_up_to, rules.medium_up_to) == (0.05, 0.10, 0.20)
    assert (rules.overclaimed_from, rules.critical_from) == (0.20, 0.50)
    assert rules.trust.deltas == {
        TrustEvent.PERFECT_MATCH: 1,
        TrustEvent.MINOR_DISCREPANCY: -1,
        TrustEvent.MEDIUM_DISCREPANCY: -3,
        TrustEvent.HIGH_DISCREPANCY: -5,
        TrustEvent.OVERCLAIM: -10,
    }
    assert (rules.trust.start, rules.trust.lowest, rules.trust.highest) == (50, 0, 100)
    assert (rules.intake.per_minute, rules.intake.burst) == (60.0, 20)
    assert (rules.risk.clicks_per_view_above, rules.risk.min_views) == (0.35, 100)
    assert (rules.risk.conversions_per_click_above, rules.risk.min_clicks) == (0.60, 20)


def test_rules_hold_data_only() -> None:
    """They are sent to Spark's executors."""

    def leaves(value: Any) -> Any:
        if dataclasses.is_dataclass(value):
            for item in dataclasses.fields(value):
                yield from leaves(getattr(value, item.name))
        elif isinstance(value, tuple):
            for item in value:
                yield from leaves(item)
        else:
            yield value

    plain = int | float | str | None
    assert [leaf for leaf in leaves(DEFAULT_RULES) if not isinstance(leaf, plain)] == []
    assert copy.deepcopy(DEFAULT_RULES) == DEFAULT_RULES
    assert hash(DEFAULT_RULES) == hash(Rules())


def test_rules_do_not_change() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        DEFAULT_RULES.growth_per_hour = 0.5  # type: ignore[misc]


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: Rules(growth_per_hour=-0.1), "Rules.growth_per_hour must be a number of at least 0"),
        (lambda: Rules(growth_cap_hours=float("nan")), "Rules.growth_cap_hours"),
        (lambda: Rules(matched_up_to=0.15), "matched_up_to must not be above Rules.low_up_to"),
        (lambda: Rules(medium_up_to=0.07), "low_up_to must not be above Rules.medium_up_to"),
        (lambda: Rules(critical_from=0.1), "overclaimed_from must not be above Rules.critical_from"),
        (lambda: Rules(overclaimed_from=0), "every report overclaims"),
        (lambda: Rules(retries=[]), "Rules.retries must be a tuple"),  # type: ignore[arg-type]
        (
            lambda: Rules(
                retries=(RetryRule(Status.MATCHED, 1, False, 2), RetryRule(Status.MATCHED, 2, False, 2))
            ),
            "at most one rule per status",
        ),
        (lambda: TrustRules(overclaim=-0.1), "TrustRules.overclaim must be an int"),  # type: ignore[arg-type]
        (lambda: TrustRules(start=200), "TrustRules.start must be between"),
        (lambda: RetryRule("MATCHED", 1, False, 2), "must be a Status"),  # type: ignore[arg-type]
        (lambda: RetryRule(Status.MATCHED, 1, False, 0), "RetryRule.max_attempts must be an int from 1"),
        (lambda: RetryRule(Status.MATCHED, float("inf"), False, 1), "RetryRule.delay_seconds"),
        (lambda: AlertRule(Status.MATCHED, "", "high"), "must not be empty"),
        (lambda: RiskRules(min_views=0), "RiskRules.min_views must be an int from 1"),
        (lambda: IntakeRules(per_minute=0), "per_minute must be above 0"),
        (lambda: IntakeRules(burst=0), "IntakeRules.burst must be an int from 1"),
    ],
)
def test_what_makes_no_sense_is_refused(make: Any, complaint: str) -> None:
    with pytest.raises(ReconcileConfigError, match=complaint):
        make()
