"""Prometheus metrics of Spark queries; nothing happens where prometheus_client is not installed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from conquiet.observe.failsafe import once, safely

__all__ = ["PipelineMetrics"]


class PipelineMetrics:
    """The metrics of one query, streaming or batch. No method ever raises."""

    def __init__(self, query: str) -> None:
        self._query = query
        self._families: dict[str, Any] | None = None
        safely(self._look_up)

    def _look_up(self) -> None:
        self._families = _families()
        for name in self._families or ():
            if name != "verdicts":
                self._child(name)  # there from the start, with 0

    def batch(self, *, rows: int, seconds: float, rows_per_second: float, lost: int = 0) -> None:
        """A micro-batch, or a batch, ended; `lost` is how many entries its sources have lost in all."""
        self._add("batches", 1)
        self._add("rows", rows)
        self._do("seconds", "observe", seconds)
        self._do("rows_per_second", "set", rows_per_second)
        self._do("entries_lost", "set", lost)

    def behind(self, seconds: float) -> None:
        """How old the newest entry that was read is by now; 0 if there was nothing to read."""
        self._do("lag", "set", seconds)

    def remembered(self, rows: int, duplicates: int) -> None:
        """Keys in the state of the query, and rows that were left out for them in a micro-batch."""
        self._do("state_rows", "set", rows)
        self._add("duplicates", duplicates)

    def reconciled(self, verdicts: Mapping[str, int], *, alerts: int, retries: int, quarantined: int) -> None:
        """What came of the reports of a batch."""
        for status, count in verdicts.items():
            safely(self._count_verdicts, status, count)
        self._add("alerts", alerts)
        self._add("retries", retries)
        self._add("quarantined", quarantined)

    def _count_verdicts(self, status: str, count: int) -> None:
        if self._families is not None:
            self._families["verdicts"].labels(self._query, status).inc(count)

    def _add(self, family: str, count: float) -> None:
        self._do(family, "inc", count)

    def _do(self, family: str, method: str, value: float) -> None:
        if self._families is not None:
            safely(lambda: getattr(self._child(family), method)(value))

    def _child(self, family: str) -> Any:
        assert self._families is not None
        return self._families[family].labels(self._query)


@once
def _families() -> dict[str, Any] | None:
    try:
        from prometheus_client import Counter, Gauge, Histogram
    except ImportError:
        return None
    labels = ("query",)
    buckets = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600)
    lag = "Age of the newest entry that was read, at the end of the last micro-batch; 0: nothing was left to read"
    prefix = "conquiet_pipeline"
    return {
        "batches": Counter(f"{prefix}_batches_total", "Micro-batches, and batches, that ended", labels),
        "rows": Counter(f"{prefix}_rows_total", "Rows read by them", labels),
        "seconds": Histogram(f"{prefix}_batch_seconds", "Duration of a micro-batch", labels, buckets=buckets),
        "rows_per_second": Gauge(
            f"{prefix}_rows_per_second", "Rows a second in the last micro-batch", labels
        ),
        "entries_lost": Gauge(
            f"{prefix}_entries_lost", "Entries trimmed before they were read, so far", labels
        ),
        "lag": Gauge(f"{prefix}_lag_seconds", lag, labels),
        "state_rows": Gauge(f"{prefix}_state_rows", "Keys in the query's state", labels),
        "duplicates": Counter(f"{prefix}_duplicates_total", "Rows left out because they came before", labels),
        "verdicts": Counter(f"{prefix}_verdicts_total", "Verdicts by their status", ("query", "status")),
        "alerts": Counter(f"{prefix}_alerts_total", "Alerts raised", labels),
        "retries": Counter(f"{prefix}_retries_total", "Reports to be judged again later", labels),
        "quarantined": Counter(f"{prefix}_quarantined_total", "Rows that could not be judged", labels),
    }
