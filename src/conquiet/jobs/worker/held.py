"""A leased job, from its claim until it is settled."""

from __future__ import annotations

from dataclasses import dataclass, field

from conquiet.jobs.backends.protocol import Settlement
from conquiet.jobs.model import Job
from conquiet.jobs.worker.context import JobContext
from conquiet.jobs.worker.execution import Execution

__all__ = ["Held", "has_lapsed", "is_suspect"]

_MOST_RELEASES = 3


@dataclass(eq=False, slots=True)
class Held:
    context: JobContext
    task: str
    since: float  # monotonic: when it arrived here
    # Monotonic, counted from the moment the claim or the last heartbeat was sent: until then no other worker has it,
    # whatever happens to this process and to the network.
    until: float
    begun: bool  # recorded in the store: an expiry is charged
    alone: bool = False
    began: float = 0.0
    started: bool = False
    seconds: float = 0.0  # that its handler took
    lost: bool = False
    ended: Execution | None = field(default=None)
    end: Settlement | None = None  # of a job that failed: what the store is told


def is_suspect(job: Job) -> bool:
    """Return whether `job` may be what killed its last worker: it had begun there, and has not ended since.

    A job that was given back again and again, because no worker could run it alone, is not treated as one.
    """
    for releases, attempt in enumerate(reversed(job.attempts if job.lease_expiries else ())):
        if attempt.outcome != "released":
            return attempt.outcome == "lease expired" and releases < _MOST_RELEASES
    return False


def has_lapsed(job: Job) -> bool:
    """Return whether a lease of `job` expired since it last ended."""
    for attempt in reversed(job.attempts):
        if attempt.outcome != "released":
            return attempt.outcome == "lease expired"
    return False
