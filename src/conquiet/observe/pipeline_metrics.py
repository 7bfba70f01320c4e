"""Prometheus metrics of Spark queries; nothing is recorded without prometheus_client."""

from __future__ import annotations

from collections.abc import Mapping
from threading import Lock
from typing import Any

from conquiet.observe.failsafe import registered, safely

__all__ = ["PipelineMetrics"]

_PREFIX = "conquiet_pipeline"


class PipelineMetrics:
    """The metrics of one query, streaming or batch. No method ever raises."""

    def __init__(self, query: str) -> None:
        self._query = query
        self._families: dict[str, Any] | None = None
        safely(self._look_up)

    def _look_up(self) -> None:
        self._families = _families()
        for name in self._families or ():
            self._child(name)  # exported from the start, with 0

    def batch(self, *, rows: int, seconds: float, rows_per_second: float, lost: int = 0) -> None:
        """Record the end of a micro-batch or batch. `lost` is the number of entries its sources have lost so far."""
        self._add("batches", 1)
        self._add("rows", rows)
        self._do("seconds", "observe", seconds)
        self._do("rows_per_second", "set", rows_per_second)
        self._do("entries_lost", "set", lost)

    def behind(self, seconds: float) -> None:
        """Record the age of the newest entry that was read; 0 if there was nothing to read."""
        self._do("lag", "set", seconds)

    def remembered(self, rows: int, duplicates: int) -> None:
        """Record the keys in the state of the query, and the rows of a micro-batch dropped as duplicates."""
        self._do("state_rows", "set", rows)
        self._add("duplicates", duplicates)

    def count(self, metric: str, help: str, numbers: Mapping[str, int], label: str | None = None) -> None:
        """Add to `conquiet_pipeline_<metric>_total`, a metric that the query defines.

        `numbers` maps values of `label` to numbers; without a label it has the single key "".
        """
        safely(self._count, metric, help, numbers, label)

    def _count(self, metric: str, help: str, numbers: Mapping[str, int], label: str | None) -> None:
        family = _counter(metric, help, label)
        if family is not None:
            for value, number in numbers.items():
                values = (self._query,) if label is None else (self._query, value)
                family.labels(*values).inc(number)

    def _add(self, family: str, count: float) -> None:
        self._do(family, "inc", count)

    def _do(self, family: str, method: str, value: float) -> None:
        if self._families is not None:
            safely(lambda: getattr(self._child(family), method)(value))

    def _child(self, family: str) -> Any:
        assert self._families is not None
        return self._families[family].labels(self._query)


@registered
def _families(prometheus: Any) -> dict[str, Any]:
    labels = ("query",)
    buckets = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600)
    lag = "Age of the newest entry that was read, at the end of the last micro-batch; 0: nothing was left to read"
    return {
        "batches": prometheus.Counter(
            f"{_PREFIX}_batches_total", "Micro-batches, and batches, that ended", labels
        ),
        "rows": prometheus.Counter(f"{_PREFIX}_rows_total", "Rows read by them", labels),
        "seconds": prometheus.Histogram(
            f"{_PREFIX}_batch_seconds", "Duration of a micro-batch", labels, buckets=buckets
        ),
        "rows_per_second": prometheus.Gauge(
            f"{_PREFIX}_rows_per_second", "Rows a second in the last micro-batch", labels
        ),
        "entries_lost": prometheus.Gauge(
            f"{_PREFIX}_entries_lost", "Entries trimmed before they were read, so far", labels
        ),
        "lag": prometheus.Gauge(f"{_PREFIX}_lag_seconds", lag, labels),
        "state_rows": prometheus.Gauge(f"{_PREFIX}_state_rows", "Keys in the query's state", labels),
        "duplicates": prometheus.Counter(
            f"{_PREFIX}_duplicates_total", "Rows dropped because they arrived before", labels
        ),
    }


_counters: dict[str, Any] = {}
_counters_lock = Lock()


def _counter(metric: str, help: str, label: str | None) -> Any:
    """Return the counter of that name, registered once per process; None without prometheus_client."""
    try:
        from prometheus_client import Counter
    except ImportError:
        return None
    with _counters_lock:
        if metric not in _counters:
            labels = ("query",) if label is None else ("query", label)
            _counters[metric] = Counter(f"{_PREFIX}_{metric}_total", help, labels)
        return _counters[metric]
