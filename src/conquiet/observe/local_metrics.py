"""Prometheus metrics of the in-process queue, its workers and the circuit breakers.

Without prometheus_client nothing is recorded, and nothing here raises: a metric must not fail a job.
Depth, latency and breaker state are read at each scrape; an item costs two additions.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Protocol

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


def watch_breaker(platform: str, value: Callable[[], float]) -> None:
    """Export `value()` as the state of the platform's breaker: 0 closed, 1 half-open, 2 open."""
    safely(_watch_breaker, platform, value)


def _watch_breaker(platform: str, value: Callable[[], float]) -> None:
    families = _families()
    if families is not None:
        families[2].labels(platform).set_function(value)


class LocalWorkerMetrics:
    """The duration and the failures of jobs, for the whole process."""

    __slots__ = ("_duration", "_failures")

    def __init__(self) -> None:
        self._duration: Any = None
        self._failures: Any = None
        safely(self._look_up)

    def _look_up(self) -> None:
        families = _families()
        if families is not None:
            self._duration, self._failures, _ = families

    def processed(self, seconds: float, *, failed: bool) -> None:
        """Record that a handler ended after `seconds`."""
        if self._duration is not None:
            safely(self._duration.observe, seconds)
            if failed:
                safely(self._failures.inc, 1)


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


@registered
def _families(prometheus: Any) -> tuple[Any, ...]:
    """Create the metrics of durations, failures and breaker states, and register those of the queues."""
    states = "Circuit breakers: 0 closed, 1 half-open, 2 open"
    families = (
        prometheus.Histogram(
            "conquiet_job_processing_duration", "Seconds that a handler took", buckets=LATENCY_BOUNDS
        ),
        prometheus.Counter("conquiet_job_failures_total", "Jobs whose handler failed"),
        prometheus.Gauge("conquiet_breaker_state_gauge", states, ["platform"]),
    )
    prometheus.REGISTRY.register(_QUEUES)
    return families
