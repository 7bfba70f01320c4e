"""The transition table: every state change that a job can make.

Stores do not read it at run time; their statements contain the same conditions. The conformance suite walks the table
and checks on every store that each transition works and that every other pair of state and trigger is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from conquiet.jobs.model import JobState

__all__ = ["TRANSITIONS", "Transition", "targets"]

READY, IN_FLIGHT, FAILED, SUCCEEDED = JobState


@dataclass(frozen=True, slots=True)
class Transition:
    source: JobState | None  # None: the job does not exist yet
    trigger: str
    target: JobState | None  # None: the job is removed
    when: str = ""
    needs_lease: bool = False
    by_a_person: bool = False


TRANSITIONS: Final = (
    # The matrix of the specification.
    Transition(None, "enqueue", READY, "no job has that id"),
    Transition(READY, "claim", IN_FLIGHT, "retry_at has come"),
    Transition(IN_FLIGHT, "ack", SUCCEEDED, needs_lease=True),
    Transition(IN_FLIGHT, "nack", READY, "retries are left", needs_lease=True),
    Transition(IN_FLIGHT, "nack", FAILED, "no retries are left", needs_lease=True),
    Transition(IN_FLIGHT, "claim", IN_FLIGHT, "the lease has expired"),
    # What the specification leaves open, decided here for all stores.
    Transition(IN_FLIGHT, "nack", FAILED, "the failure is not retryable", needs_lease=True),
    Transition(IN_FLIGHT, "claim", FAILED, "the lease has expired as often as is allowed"),
    Transition(IN_FLIGHT, "heartbeat", IN_FLIGHT, needs_lease=True),
    Transition(IN_FLIGHT, "release", READY, "no retry is consumed", needs_lease=True),
    Transition(FAILED, "retry", READY, by_a_person=True),
    Transition(FAILED, "discard", None, by_a_person=True),
    Transition(READY, "discard", None, by_a_person=True),
    Transition(SUCCEEDED, "prune", None, "it finished long enough ago", by_a_person=True),
    Transition(FAILED, "prune", None, "it finished long enough ago", by_a_person=True),
)


def targets(source: JobState | None, trigger: str) -> set[JobState | None]:
    """Return the states that `trigger` can move a job in state `source` to; empty if the trigger is refused."""
    return {move.target for move in TRANSITIONS if (move.source, move.trigger) == (source, trigger)}
