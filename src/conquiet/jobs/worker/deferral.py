"""What happens to a job that the code of this worker cannot run: code of another version may.

While a program is replaced, workers of both versions claim from the same queues. An old one gets jobs of tasks that it does
not have, a new one arguments that its functions no longer take. They give such a job back, a little later each time, until
a worker that fits claims it; only when none has done so for long does it fail.
"""

from __future__ import annotations

from datetime import timedelta

from conquiet.jobs.error_text import error_text
from conquiet.jobs.model import Attempt, Job
from conquiet.observe import SafeLogger

__all__ = ["MISMATCH", "UNKNOWN_AFTER", "Deferral"]

_log = SafeLogger("conquiet.jobs")

MISMATCH = "MISMATCH"  # the category of an attempt that ended because the code did not fit
UNKNOWN_AFTER = 900.0
_FIRST_DELAY, _LONGEST_DELAY = 1.0, 30.0


class Deferral:
    """Shared by the lanes of a worker. Safe in any thread."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._told: set[str] = set()

    def delay(self, job: Job, task: str, error: BaseException) -> float | None:
        """Return after how many seconds the job is due again. None: no worker could run it for so long that it fails.

        The time is counted from when a worker first gave it back, not from when it was enqueued: after a long backlog,
        the first worker that gets it may be an old one.
        """
        earlier = _given_back(job)
        if job.lease is None:
            return None
        claimed_at = job.lease.expires_at - timedelta(
            seconds=job.lease.ttl
        )  # by the store's clock, as attempts are
        waited = (claimed_at - earlier[-1].started_at).total_seconds() if earlier else 0.0
        left = self._patience - waited
        if left <= 0:
            return None
        if task not in self._told:
            self._told.add(task)
            _log.warning(
                "job %s, and others like it from now on, are given back for up to %g s, for a worker whose code fits: %s",
                job.id,
                self._patience,
                error_text(error),
            )
        return min(_FIRST_DELAY * 2.0 ** min(len(earlier), 10), _LONGEST_DELAY, left)


def _given_back(job: Job) -> list[Attempt]:
    """Return the attempts since the job last ran that ended because the code did not fit, the latest first."""
    found = []
    for attempt in reversed(job.attempts):
        if attempt.outcome != "released":
            break
        if attempt.category == MISMATCH:
            found.append(attempt)
    return found
