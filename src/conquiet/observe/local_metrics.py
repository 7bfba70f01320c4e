"""Prometheus metrics of the in-process queue, its workers and the circuit breakers.

Without prometheus_client nothing is recorded, and nothing here raises: a metric must not fail a job.
Depth, latency and breaker state are read at each scrape; an item costs two additions.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from typing import Any, ClassVar, Protocol

from conquiet.observe.failsafe import registered, safely

__all__ = ["LATENCY_BOUNDS", "Latency", "LocalWorkerMetrics", "watch_breaker", "watch_queue"]

LATENCY_BOUNDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class Latency:
    """A histogram in plain numbers, which its owner updates under its own lock.

    A Histogram of prometheus_client takes longer to update than the queue to serve an item.
    """

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(LATENCY_BOUNDS) + 1)  # the last one counts values above all bounds
        self.total = 0.0

    def add(self, other: Latency) -> None:
        self.counts = [mine + its for mine, its in zip(self.counts, other.counts, strict=True)]
        self.total += other.total


class Measured(Protocol):
    """The part of a queue that the metrics read."""

    @property
    def depth(self) -> int: ...


def watch_queue(queue: Measured, latency: Latency) -> None:
    """Export this queue's depth and latency, summed with the other queues of the process."""
    _QUEUES.add(queue, latency)
    safely(_families)


class Breaking(Protocol):
    """The part of a breaker that the metrics read."""

    @property
    def state(self) -> str: ...


def watch_breaker(platform: str, breaker: Breaking) -> None:
    """Export the state of a platform's breaker while it exists: 0 closed, 1 half-open, 2 open.

    Several registries may have a breaker for one platform: the gauge is the worst state among them.
    """
    _BREAKERS.add(platform, breaker)
    safely(_families)


class LocalWorkerMetrics:
    """The duration and the failures of jobs, for the whole process."""

    __slots__ = ("_duration", "_failures", "_paused")

    def __init__(self) -> None:
        self._duration: Any = None
        self._failures: Any = None
        self._paused: Any = None
        safely(self._look_up)

    def _look_up(self) -> None:
        families = _families()
        if families is not None:
            self._duration, self._failures, self._paused = families

    def processed(self, seconds: float, *, failed: bool) -> None:
        """Record that a handler ended after `seconds`."""
        if self._duration is not None:
            safely(self._duration.observe, seconds)
            if failed:
                safely(self._failures.inc, 1)

    def paused(self, more: int) -> None:
        """Record that a worker begins to wait for the end of an outage (1), or no longer waits (-1)."""
        if self._paused is not None:
            safely(self._paused.inc, more)


class _Queues:
    """Every queue of this process, as a collector of prometheus_client."""

    def __init__(self) -> None:
        # Reentrant: garbage collection can call `_keep` at any allocation under this lock.
        self._lock = threading.RLock()
        self._alive: dict[weakref.ref[Measured], Latency] = {}
        self._gone = Latency()

    def add(self, queue: Measured, latency: Latency) -> None:
        with self._lock:
            self._alive[weakref.ref(queue, self._keep)] = latency

    def _keep(self, gone: weakref.ref[Measured]) -> None:
        """Keep the counts of a queue that is gone: a total must not decrease."""
        with self._lock:
            self._gone.add(self._alive.pop(gone))

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily

        latency = Latency()
        with self._lock:
            alive = list(self._alive)
            for counted in (self._gone, *self._alive.values()):
                latency.add(counted)
        depth = sum(queue.depth for queue in (ref() for ref in alive) if queue is not None)
        yield GaugeMetricFamily("conquiet_queue_depth", "Items in the in-process queues", value=depth)
        buckets, total = [], 0
        for bound, count in zip((*map(str, LATENCY_BOUNDS), "+Inf"), latency.counts, strict=True):
            total += count
            buckets.append((bound, total))
        yield HistogramMetricFamily(
            "conquiet_dequeue_latency_histogram",
            "Seconds from the moment an item was ready until it was taken",
            buckets=buckets,
            sum_value=latency.total,
        )


_QUEUES = _Queues()


class _Breakers:
    """Every breaker of this process, as a collector of prometheus_client."""

    _VALUES: ClassVar = {"CLOSED": 0.0, "HALF_OPEN": 1.0, "OPEN": 2.0}

    def __init__(self) -> None:
        self._lock = threading.RLock()  # reentrant, as above
        self._alive: dict[weakref.ref[Breaking], str] = {}

    def add(self, platform: str, breaker: Breaking) -> None:
        with self._lock:
            self._alive[weakref.ref(breaker, self._forget)] = platform

    def _forget(self, gone: weakref.ref[Breaking]) -> None:
        with self._lock:
            self._alive.pop(gone, None)

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import GaugeMetricFamily

        with self._lock:
            alive = list(self._alive.items())
        worst: dict[str, float] = {}
        for ref, platform in alive:
            breaker = ref()
            if breaker is not None:
                worst[platform] = max(self._VALUES[breaker.state], worst.get(platform, 0.0))
        states = "Circuit breakers: 0 closed, 1 half-open, 2 open"
        family = GaugeMetricFamily("conquiet_breaker_state_gauge", states, labels=["platform"])
        for platform, value in worst.items():
            family.add_metric([platform], value)
        yield family


_BREAKERS = _Breakers()


@registered
def _families(prometheus: Any) -> tuple[Any, ...]:
    """Create the metrics of durations and failures, and register those of queues and breakers."""
    families = (
        prometheus.Histogram(
            "conquiet_job_processing_duration", "Seconds that a handler took", buckets=LATENCY_BOUNDS
        ),
        prometheus.Counter("conquiet_job_failures_total", "Jobs whose handler failed"),
        prometheus.Gauge(
            "conquiet_workers_paused",
            "Workers that wait for the end of an outage",
            multiprocess_mode="livesum",
        ),
    )
    prometheus.REGISTRY.register(_QUEUES)
    prometheus.REGISTRY.register(_BREAKERS)
    return families
