"""Prometheus metrics of leased jobs; nothing is recorded without prometheus_client.

A worker counts per batch: a job costs a look-up and two bisections, not a call of prometheus_client for each number.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol
from weakref import WeakSet

from conquiet.observe.failsafe import read_at_scrape, registered, safely

__all__ = [
    "JOB_OUTCOMES",
    "JobOutages",
    "JobSeries",
    "JobSteps",
    "count_enqueued",
    "job_series",
    "watch_running",
]

JOB_OUTCOMES = ("succeeded", "retried", "failed", "given_back", "lost")
OTHER = "(other)"  # what comes after so many labels
MOST_SERIES = 200

# From a millisecond to a day: the same metric shows a call that answers a user and a nightly report.
_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0)
JOB_BOUNDS = (*_SECONDS, 3600.0, 14400.0, 86400.0)
STEP_BOUNDS = (0.0005, *_SECONDS[:-2])


class Running(Protocol):
    """A worker, as far as the gauge of running jobs is concerned."""

    def running_series(self) -> Sequence[JobSeries | None]: ...


class JobSeries:
    """The metrics of one task in one queue, looked up once. The caller sees to it that nothing is raised."""

    __slots__ = ("_finished", "_leases_lost", "_redelivered", "_retries", "_run", "_stale", "_wait")

    def __init__(self, families: _Families, queue: str, task: str) -> None:
        labels = (queue, task)
        self._finished = {outcome: families.finished.labels(*labels, outcome) for outcome in JOB_OUTCOMES}
        self._retries = families.retries.labels(*labels)
        self._redelivered = families.redelivered.labels(*labels)
        self._leases_lost = families.leases_lost.labels(*labels)
        self._stale = families.stale.labels(*labels)
        self._wait = families.wait.labels(*labels)
        self._run = families.run.labels(*labels)
        read_at_scrape(families.running.labels(*labels), partial(_number_running, self))

    def claimed(self, redelivered: int) -> None:
        self._redelivered.inc(redelivered)

    def ended(
        self, outcome: str, number: int, waited: Sequence[float], ran: Sequence[float], retries: int
    ) -> None:
        """Count jobs with this outcome. Those that had begun have waited and run for so many seconds."""
        self._finished[outcome].inc(number)
        if ran:
            observe_all(self._wait, waited, JOB_BOUNDS)
            observe_all(self._run, ran, JOB_BOUNDS)
        if retries:
            self._retries.inc(retries)

    def lost(self, leases: int, stale: int) -> None:
        self._leases_lost.inc(leases)
        self._stale.inc(stale)


def observe_all(histogram: Any, values: Sequence[float], bounds: Sequence[float]) -> None:
    """Like `histogram.observe` for each value, but each bucket is touched once, not once per value."""
    if len(values) == 1:
        histogram.observe(values[0])
        return
    counts: dict[int, int] = {}
    for value in values:
        bucket = bisect_left(bounds, value)
        counts[bucket] = counts.get(bucket, 0) + 1
    # prometheus_client has no public way to add many; a test compares the two for every version that is used.
    buckets = histogram._buckets
    for bucket, count in counts.items():
        buckets[bucket].inc(count)
    histogram._sum.inc(sum(values))


def job_series(queue: str, task: str) -> JobSeries | None:
    """Return the metrics of a task in a queue; None without prometheus_client.

    Names may come from payloads, so only the first 200 have a series of their own. All others share one.
    """
    families = _families()
    if families is None:
        return None
    with _LOCK:
        found = _SERIES.get((queue, task))
        if found is None:
            if len(_SERIES) >= MOST_SERIES:
                queue = task = OTHER
            found = _SERIES.get((queue, task)) or JobSeries(families, queue, task)
            _SERIES[queue, task] = found
        return found


def count_enqueued(queue: str, task: str, number: int) -> None:
    """Count jobs that were enqueued. Does not raise."""
    counter = _ENQUEUED.get((queue, task))
    if counter is None:
        safely(_count_enqueued, queue, task, number)
    else:
        safely(counter.inc, number)


def _count_enqueued(queue: str, task: str, number: int) -> None:
    families = _families()
    if families is None:
        return
    with _LOCK:
        if len(_ENQUEUED) >= MOST_SERIES and (queue, task) not in _ENQUEUED:
            queue = task = OTHER
        counter = _ENQUEUED[queue, task] = families.enqueued.labels(queue, task)
    counter.inc(number)


class JobSteps:
    """How long the store took for claims and settles. No method raises."""

    __slots__ = ("_claim", "_settle")

    def __init__(self) -> None:
        self._claim: Any = None
        self._settle: Any = None
        safely(self._look_up)

    def _look_up(self) -> None:
        families = _families()
        if families is not None:
            self._claim, self._settle = families.claim, families.settle

    def claimed(self, seconds: float) -> None:
        if self._claim is not None:
            safely(self._claim.observe, seconds)

    def settled(self, seconds: float) -> None:
        if self._settle is not None:
            safely(self._settle.observe, seconds)


class JobOutages:
    """Outages of the store, as workers see them. No method raises."""

    def began(self) -> None:
        safely(self._add, 1, 0.0)

    def lasted(self, seconds: float) -> None:
        """Add seconds during which the store was away: also while an outage lasts, so that it can be seen then."""
        safely(self._add, 0, seconds)

    def _add(self, outages: int, seconds: float) -> None:
        families = _families()
        if families is not None:
            families.outages.inc(outages)
            families.outage_seconds.inc(seconds)


def watch_running(worker: Running) -> None:
    """Show the jobs that this worker runs, as long as it exists."""
    _RUNNING.add(worker)


def _number_running(series: JobSeries) -> int:
    workers: Iterable[Running] = tuple(_RUNNING)
    return sum(worker.running_series().count(series) for worker in workers)


_LOCK = threading.Lock()
_SERIES: dict[tuple[str, str], JobSeries] = {}
_ENQUEUED: dict[tuple[str, str], Any] = {}
_RUNNING: WeakSet[Running] = WeakSet()


class _Families(NamedTuple):
    enqueued: Any
    finished: Any
    retries: Any
    redelivered: Any
    leases_lost: Any
    stale: Any
    wait: Any
    run: Any
    running: Any
    claim: Any
    settle: Any
    outages: Any
    outage_seconds: Any


@registered
def _families(prometheus: Any) -> _Families:
    labels = ("queue", "task")

    def counter(name: str, text: str, labels: tuple[str, ...] = labels) -> Any:
        return prometheus.Counter(f"conquiet_jobs_{name}_total", text, labels)

    def histogram(name: str, text: str, bounds: Sequence[float], labels: tuple[str, ...] = ()) -> Any:
        return prometheus.Histogram(f"conquiet_jobs_{name}_seconds", text, labels, buckets=bounds)

    return _Families(
        enqueued=counter("enqueued", "Jobs that were enqueued"),
        finished=counter("finished", "Claimed jobs by how they ended here", (*labels, "outcome")),
        retries=counter("retries", "Attempts at jobs that had failed before"),
        redelivered=counter("redelivered", "Claims of jobs that had been claimed before"),
        leases_lost=counter("leases_lost", "Jobs whose lease was lost while they were held"),
        stale=counter("stale_settles", "Results that the store refused, because the lease was lost"),
        wait=histogram("wait", "Time from the moment a job was due until it began", JOB_BOUNDS, labels),
        run=histogram("run", "Time that a job's handler took", JOB_BOUNDS, labels),
        running=prometheus.Gauge(
            "conquiet_jobs_running", "Jobs that run now", labels, multiprocess_mode="livesum"
        ),
        claim=histogram("claim", "Time that the store took for a claim", STEP_BOUNDS),
        settle=histogram("settle", "Time that the store took to record results", STEP_BOUNDS),
        outages=counter("outages", "Times that the store stopped answering", ()),
        outage_seconds=counter("outage_seconds", "Time during which the store did not answer", ()),
    )
