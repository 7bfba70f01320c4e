"""Prometheus metrics of streaming queries; nothing happens where prometheus_client is not installed."""

from __future__ import annotations

from typing import Any

from conquiet.observe.safely import once, safely

__all__ = ["PipelineMetrics"]


class PipelineMetrics:
    """The metrics of one streaming query. No method ever raises."""

    def __init__(self, query: str) -> None:
        self._children: tuple[Any, ...] | None = None
        safely(self._look_up, query)

    def _look_up(self, query: str) -> None:
        families = _families()
        if families is not None:
            self._children = tuple(family.labels(query) for family in families)

    def batch(self, *, rows: int, seconds: float, rows_per_second: float, lost: int) -> None:
        """A micro-batch ended; `lost` is how many entries its sources have lost in all."""
        if self._children is not None:
            batches, all_rows, duration, rate, losses = self._children
            safely(batches.inc)
            safely(all_rows.inc, rows)
            safely(duration.observe, seconds)
            safely(rate.set, rows_per_second)
            safely(losses.set, lost)


@once
def _families() -> tuple[Any, ...] | None:
    try:
        from prometheus_client import Counter, Gauge, Histogram
    except ImportError:
        return None
    labels = ("query",)
    return (
        Counter("conquiet_pipeline_batches_total", "Micro-batches that ended", labels),
        Counter("conquiet_pipeline_rows_total", "Rows read by them", labels),
        Histogram(
            "conquiet_pipeline_batch_seconds",
            "Duration of a micro-batch",
            labels,
            buckets=(0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600),
        ),
        Gauge("conquiet_pipeline_rows_per_second", "Rows a second in the last micro-batch", labels),
        Gauge("conquiet_pipeline_entries_lost", "Entries trimmed before they were read, so far", labels),
    )
