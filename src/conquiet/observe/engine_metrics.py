"""Prometheus metrics of the Consumer Engine; nothing is recorded without prometheus_client."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any, Protocol
from weakref import WeakSet

from conquiet.observe.failsafe import read_at_scrape, registered, safely

__all__ = ["EngineMetrics"]


class Counts(Protocol):
    """An object with the number of abandoned calls that still hold a thread."""

    @property
    def abandoned(self) -> int: ...


class EngineMetrics:
    """The metrics of one loop, counted per batch. No method raises: a metric must not fail a transaction."""

    __slots__ = ("_published", "_task", "_transactions")

    def __init__(self, task: str, *threads: Counts) -> None:
        self._task = task
        self._published: dict[tuple[str, str], int] = {}
        self._transactions: Any = None
        safely(self._look_up, threads)

    def _look_up(self, threads: tuple[Counts, ...]) -> None:
        families = _families()
        if families is not None:
            self._transactions, abandoned = families
            with _LOCK:
                _THREADS.setdefault(self._task, WeakSet()).update(threads)
            read_at_scrape(abandoned.labels(self._task), partial(_abandoned, self._task))

    def publish(self, report: Any) -> None:
        """Add the changes of `report` since the last call."""
        if self._transactions is not None:
            safely(self._publish, report)

    def _publish(self, report: Any) -> None:
        now = {("succeeded", ""): report.succeeded, ("unsettled", ""): report.unsettled}
        now |= {("failed", category): count for category, count in list(report.by_category.items())}
        for (status, category), count in now.items():
            more = count - self._published.get((status, category), 0)
            if more:
                self._transactions.labels(self._task, status, category).inc(more)
                self._published[status, category] = count


# Read at each scrape. Weak: a loop that has ended counts only while an abandoned thread keeps it alive.
_THREADS: dict[str, WeakSet[Any]] = {}
_LOCK = threading.Lock()


def _abandoned(task: str) -> int:
    with _LOCK:
        return sum(threads.abandoned for threads in _THREADS[task])


@registered
def _families(prometheus: Any) -> tuple[Any, ...]:
    return (
        prometheus.Counter(
            "conquiet_engine_transactions_total",
            "Transactions by outcome",
            ("task", "status", "category"),
        ),
        prometheus.Gauge(
            "conquiet_engine_abandoned_threads",
            "Calls past their time limit that still hold a thread",
            ("task",),
            multiprocess_mode="livesum",
        ),
    )
