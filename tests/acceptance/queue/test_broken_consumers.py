"""The same scenarios for the real consumer, which must pass, and for broken ones, each of which must be caught."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from conquiet.queue.flows.delivery import Delivery
from conquiet.verify.history import Verdict, check
from tests.acceptance.queue import broken_consumers as broken
from tests.acceptance.queue.consumer_stage import (
    Scenario,
    Stage,
    failing_handler,
    killed_after_the_ack,
    killed_before_the_consumer_saw_it,
    killed_in_the_handler,
    malformed_batch,
    slow_handler_beside_recovery,
    steady,
    stopped_in_a_read,
    two_consumers,
)

SCENARIOS = [
    pytest.param(steady, marks=pytest.mark.clause("C-01")),
    pytest.param(failing_handler, marks=pytest.mark.clause("C-02")),
    pytest.param(stopped_in_a_read, marks=pytest.mark.clause("C-08")),
    pytest.param(malformed_batch),
    pytest.param(slow_handler_beside_recovery, marks=pytest.mark.clause("C-16")),
    pytest.param(two_consumers),
    pytest.param(killed_in_the_handler, marks=pytest.mark.clause("S-21")),
    pytest.param(killed_after_the_ack),
    pytest.param(killed_before_the_consumer_saw_it, marks=pytest.mark.clause("S-21")),
]

WRONG: list[tuple[type[Delivery], Scenario, set[str]]] = [
    (broken.AcksBeforeHandler, steady, {"unhandled-ack", "handled-after-ack"}),
    (broken.AcksBeforeHandler, killed_in_the_handler, {"unhandled-ack", "handled-after-ack", "lost"}),
    (broken.AcksBeforeCommit, steady, {"unhandled-ack"}),
    (broken.AcksBeforeCommit, killed_after_the_ack, {"unhandled-ack", "lost"}),
    (broken.SwallowsErrors, failing_handler, {"unhandled-ack", "lost"}),
    (broken.AcksWhatItDropsAtStop, stopped_in_a_read, {"unhandled-ack", "lost"}),
    (broken.DropsTheGoodOnes, malformed_batch, {"unhandled-ack", "lost"}),
    (broken.ClaimsAtOnce, slow_handler_beside_recovery, {"two-holders"}),
    (broken.HandlesAgain, steady, {"handled-after-ack"}),
    (broken.SkipsEveryThird, steady, {"unhandled-ack", "lost"}),
    (broken.NeverAcks, steady, {"undrained"}),
    (broken.AcksWhatOthersHold, two_consumers, {"unhandled-ack", "never-delivered"}),
]


@pytest.fixture
def play(redis_url: str, tmp_path: Path) -> Iterator[Callable[[type[Delivery], Scenario], Verdict]]:
    stages: list[Stage] = []

    def play(delivery: type[Delivery], scenario: Scenario) -> Verdict:
        stages.append(Stage(redis_url, tmp_path, delivery))
        scenario(stages[-1])
        return check(stages[-1].history.path)

    yield play
    for stage in stages:
        stage.close()


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_real_consumer_passes(play: Any, scenario: Scenario) -> None:
    play(Delivery, scenario).raise_if_broken()


@pytest.mark.parametrize(("delivery", "scenario", "kinds"), WRONG)
def test_a_broken_consumer_is_caught(
    play: Any, delivery: type[Delivery], scenario: Scenario, kinds: set[str]
) -> None:
    assert play(delivery, scenario).kinds == kinds


def test_every_broken_consumer_has_its_scenario() -> None:
    wrong = {cls for cls in vars(broken).values() if isinstance(cls, type) and issubclass(cls, Delivery)}
    assert wrong - {Delivery} == {delivery for delivery, _, _ in WRONG}
