"""Prometheus metrics of the state that processes share through Redis."""

from __future__ import annotations

from typing import Any
from weakref import WeakSet

from conquiet.observe.failsafe import read_at_scrape, registered, safely

__all__ = ["SharedStateMetrics"]


class SharedStateMetrics:
    """Whether a shared state is away, and what the process decided by itself meanwhile."""

    def __init__(self) -> None:
        self.is_away = False
        _ALIVE.add(self)
        safely(_families)  # so that the gauge can be seen before the first outage

    def decided_alone(self, kind: str) -> None:
        """Count a decision that the process made without the others; `kind` is breaker, rate or pace."""
        safely(_count, kind)


_ALIVE: WeakSet[SharedStateMetrics] = WeakSet()


def _number_away() -> float:
    """A process may have several states; one that is gone no longer counts."""
    return float(sum(metrics.is_away for metrics in tuple(_ALIVE)))


def _count(kind: str) -> None:
    families = _families()
    if families is not None:
        families[1].labels(kind).inc()


@registered
def _families(prometheus: Any) -> tuple[Any, Any]:
    away = prometheus.Gauge(
        "conquiet_shared_state_away",
        "Shared states whose Redis is away, so that this process decides",
        multiprocess_mode="livesum",
    )
    read_at_scrape(away, _number_away)
    alone = prometheus.Counter(
        "conquiet_shared_state_alone_total", "Decisions made without the shared state", ("kind",)
    )
    return away, alone
