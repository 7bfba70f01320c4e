"""Prometheus metrics of the Consumer Engine; nothing happens where prometheus_client is not installed."""

from __future__ import annotations

from functools import cache
from typing import Any

from conquiet.observe.safely import safely

__all__ = ["EngineMetrics"]


class EngineMetrics:
    """The metrics of one loop, counted by the batch. No method ever raises: metrics are not worth a transaction."""

    __slots__ = ("_abandoned", "_published", "_task", "_transactions")

    def __init__(self, task: str) -> None:
        self._task = task
        self._published: dict[tuple[str, str], int] = {}
        self._transactions: Any = None
        self._abandoned: Any = None
        safely(self._look_up)

    def _look_up(self) -> None:
        families = _families()
        if families is not None:
            self._transactions, abandoned = families
            self._abandoned = abandoned.labels(self._task)

    def publish(self, report: Any, abandoned: int) -> None:
        """Count what `report` has more than it had the last time."""
        if self._transactions is not None:
            safely(self._publish, report, abandoned)

    def _publish(self, report: Any, abandoned: int) -> None:
        self._abandoned.set(abandoned)
        now = {("succeeded", ""): report.succeeded, ("unsettled", ""): report.unsettled}
        now |= {("failed", category): count for category, count in list(report.by_category.items())}
        for (status, category), count in now.items():
            more = count - self._published.get((status, category), 0)
            if more:
                self._transactions.labels(self._task, status, category).inc(more)
                self._published[status, category] = count


@cache
def _families() -> tuple[Any, ...] | None:
    try:
        from prometheus_client import Counter, Gauge
    except ImportError:
        return None
    return (
        Counter(
            "conquiet_engine_transactions_total",
            "Transactions by how they ended",
            ("task", "status", "category"),
        ),
        Gauge(
            "conquiet_engine_abandoned_threads",
            "Calls past their time limit that still hold a thread",
            ("task",),
        ),
    )
