"""Heartbeats: extend the leases of the held jobs, also across outages of the store."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from conquiet.errors import StoreUnavailableError
from conquiet.flow import Flow, Sleep
from conquiet.jobs.model import Job
from conquiet.jobs.operations import JobOperations
from conquiet.jobs.worker.outage import Outage

__all__ = ["Heartbeat"]

_MOST_ATTEMPTS = 3  # only these lengthen the pause: the store may answer again just before the leases lapse


class Heartbeat:
    """Extends the leases of the held jobs three times within `lease_ttl`.

    `held` returns the jobs, or None to end. `lost` is called with the jobs whose leases are gone, `kept` with each that is
    extended and the monotonic time at which that was requested. It waits for the end of an outage; leases that have not
    lapsed by then are kept.
    """

    def __init__(
        self,
        operations: JobOperations,
        outage: Outage,
        lease_ttl: float,
        held: Callable[[], Sequence[Job] | None],
        lost: Callable[[Sequence[Job]], None],
        kept: Callable[[Job, float], None] = lambda job, asked_at: None,
    ) -> None:
        self._operations = operations
        self._outage = outage
        self._pause = lease_ttl / 3
        self._held = held
        self._lost = lost
        self._kept = kept

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
            asked_at = self._outage.monotonic()
            try:
                results = yield from self._outage.watch(self._operations.heartbeat_many(jobs))
            except StoreUnavailableError as error:
                yield from self._outage.pause(error, min(attempt, _MOST_ATTEMPTS))
                attempt += 1
                continue
            attempt = 0
            lost = []
            for job, result in zip(jobs, results, strict=True):
                if result.ok:
                    self._kept(job, asked_at)
                else:
                    lost.append(job)
            if lost:
                self._lost(lost)
