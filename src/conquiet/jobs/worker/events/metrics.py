"""The events of attempts as numbers for Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from conquiet.errors import StaleLeaseError
from conquiet.jobs.model import JobState
from conquiet.jobs.worker.events.listener import AttemptListener
from conquiet.jobs.worker.held import Held
from conquiet.observe import JobSeries, JobSteps, job_series, watch_running

__all__ = ["AttemptMetrics"]

_UNKNOWN = (
    "(unknown)"  # a task that the app does not have: its name came with a job, and anything can be in there
)
_OUTCOMES = {"succeeded": "succeeded", "released": "given_back"}


class AttemptMetrics(AttemptListener):
    """`knows` says whether the name of a task may be a label. `running` returns the jobs that run now."""

    def __init__(self, knows: Callable[[str], bool], running: Callable[[], Iterable[Held]]) -> None:
        self._knows = knows
        self._running = running
        self._steps = JobSteps()
        self._series: dict[tuple[str, str], JobSeries | None] = {}  # of the tasks that are known
        watch_running(self)

    def claimed(self, batch: Sequence[Held], seconds: float) -> None:
        self._steps.claimed(seconds)
        for series, jobs in self._by_series(batch):
            series.claimed(sum(held.context.version > 1 for held in jobs))

    def recorded(self, seconds: float) -> None:
        self._steps.settled(seconds)

    def settled(self, batch: Sequence[Held], outcome: str) -> None:
        if outcome != "failed":
            self._ended(batch, _OUTCOMES[outcome])
            return
        retried: list[Held] = []
        failed: list[Held] = []
        for held in batch:
            assert held.end is not None
            (retried if held.end.state is JobState.READY else failed).append(held)
        self._ended(retried, "retried")
        self._ended(failed, "failed")

    def lost(self, batch: Sequence[Held], error: BaseException | None) -> None:
        self._ended(batch, "lost")
        refused = isinstance(error, StaleLeaseError)
        for series, jobs in self._by_series(batch):
            stale = sum(refused and not held.lost for held in jobs)
            series.lost(stale + sum(held.lost for held in jobs), stale)

    def running_series(self) -> list[JobSeries | None]:
        return [self._series_of(held) for held in self._running()]

    def _ended(self, batch: Sequence[Held], outcome: str) -> None:
        for series, jobs in self._by_series(batch):
            began = [held for held in jobs if held.started]
            waited = [_waited(held) for held in began]
            retries = sum(held.context.job.retries > 0 for held in began)
            series.ended(outcome, len(jobs), waited, [held.seconds for held in began], retries)

    def _by_series(self, batch: Sequence[Held]) -> Iterable[tuple[JobSeries, list[Held]]]:
        groups: dict[JobSeries, list[Held]] = {}
        for held in batch:
            series = self._series_of(held)
            if series is not None:
                groups.setdefault(series, []).append(held)
        return groups.items()

    def _series_of(self, held: Held) -> JobSeries | None:
        key = held.context.job.queue, held.task
        if key in self._series:
            return self._series[key]
        queue, task = key
        if not self._knows(task):
            return job_series(queue, _UNKNOWN)
        series = self._series[key] = job_series(queue, task)
        return series


def _waited(held: Held) -> float:
    """Return for how many seconds a job was due before it began, by the clock of the store until it was claimed."""
    job = held.context.job
    lease = job.lease
    assert lease is not None
    due = (lease.expires_at - (job.retry_at or job.enqueued_at)).total_seconds() - lease.ttl
    return max(due, 0.0) + held.began - held.since
