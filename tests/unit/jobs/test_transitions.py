"""The transition table as data: exactly the specified moves, and no more."""

from __future__ import annotations

import pytest

from conquiet.jobs import JobState
from conquiet.jobs.transitions import TRANSITIONS, targets

READY, IN_FLIGHT, FAILED, SUCCEEDED = JobState


@pytest.mark.clause("J-01")
def test_the_states_are_spelled_as_in_the_document() -> None:
    assert [state.value for state in JobState] == ["Ready", "InFlight", "Failed", "Succeeded"]


@pytest.mark.clause("J-02")
def test_the_table_is_the_matrix_and_the_named_moves() -> None:
    moves = [(move.source, move.trigger, move.target) for move in TRANSITIONS]
    matrix = [
        (None, "enqueue", READY),
        (READY, "claim", IN_FLIGHT),
        (IN_FLIGHT, "ack", SUCCEEDED),
        (IN_FLIGHT, "nack", READY),
        (IN_FLIGHT, "nack", FAILED),
        (IN_FLIGHT, "claim", IN_FLIGHT),  # the document's lease timeout, noticed by the next claim
    ]
    named = [
        (IN_FLIGHT, "nack", FAILED),
        (IN_FLIGHT, "claim", FAILED),
        (IN_FLIGHT, "heartbeat", IN_FLIGHT),
        (IN_FLIGHT, "release", READY),
        (FAILED, "retry", READY),
        (FAILED, "discard", None),
        (READY, "discard", None),
        (SUCCEEDED, "prune", None),
        (FAILED, "prune", None),
    ]
    assert moves == matrix + named


@pytest.mark.clause("J-02", "J-06", "J-08")
def test_nothing_leads_out_of_success_and_only_a_person_out_of_failure() -> None:
    assert {move.trigger for move in TRANSITIONS if move.source is SUCCEEDED} == {"prune"}
    assert all(move.by_a_person for move in TRANSITIONS if move.source is FAILED)


@pytest.mark.clause("J-02", "J-09")
def test_a_worker_moves_a_leased_job_only_with_its_lease() -> None:
    for move in TRANSITIONS:
        if move.source is IN_FLIGHT:
            assert move.needs_lease == (move.trigger != "claim")
        else:
            assert not move.needs_lease


def test_targets() -> None:
    assert targets(IN_FLIGHT, "nack") == {READY, FAILED}
    assert targets(FAILED, "discard") == {None}
    assert targets(SUCCEEDED, "claim") == set()
