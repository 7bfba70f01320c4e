"""Heartbeats: the leases of the jobs in hand are extended, whatever the store does meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from conquiet.errors import StoreUnavailableError
from conquiet.flow import Flow, Sleep
from conquiet.jobs.model import Job
from conquiet.jobs.operations import JobOperations
from conquiet.jobs.worker.outage import Outage

__all__ = ["Heartbeat"]

_MOST_ATTEMPTS = (
    3  # that lengthen the pause: a store that answers again may do so just before the leases lapse
)


class Heartbeat:
    """Extends the leases of what is held, three times within `lease_ttl`.

    `held` gives the jobs, or None to end it. `lost` is called with a job whose lease is gone. An outage of the store
    is waited for: leases that have not lapsed by its end are kept.
    """

    def __init__(
        self,
        operations: JobOperations,
        outage: Outage,
        lease_ttl: float,
        held: Callable[[], Sequence[Job] | None],
        lost: Callable[[Job], None],
    ) -> None:
        self._operations = operations
        self._outage = outage
        self._pause = lease_ttl / 3
        self._held = held
        self._lost = lost

    def run(self) -> Flow[None]:
        attempt = 0
        while True:
            if not attempt:
                yield Sleep(self._pause)
            jobs = self._held()
            if jobs is None:
                return
            if not jobs:
                attempt = 0
                continue
            try:
                results = yield from self._outage.watch(self._operations.heartbeat_many(jobs))
            except StoreUnavailableError as error:
                yield from self._outage.pause(error, min(attempt, _MOST_ATTEMPTS))
                attempt += 1
                continue
            attempt = 0
            for job, result in zip(jobs, results, strict=True):
                if not result.ok:
                    self._lost(job)
