"""Prometheus metrics of the Redis Streams queue; nothing is recorded without prometheus_client."""

from __future__ import annotations

from typing import Any

from conquiet.observe.failsafe import registered, safely

__all__ = ["QueueMetrics"]


class QueueMetrics:
    """The metrics of one stream. No method raises: a metric must not fail a message."""

    __slots__ = ("_acked", "_claimed", "_latency", "_read")

    def __init__(self, stream: str) -> None:
        self._read: Any = None
        self._acked: Any = None
        self._claimed: Any = None
        self._latency: Any = None
        safely(self._look_up, stream)

    def _look_up(self, stream: str) -> None:
        families = _families()
        if families is not None:
            # Looked up once: finding a label's child takes longer than counting.
            self._read, self._acked, self._claimed, self._latency = [f.labels(stream) for f in families]

    def read(self, entries: int, seconds: float) -> None:
        """Record that a read returned `entries` entries (possibly 0) after `seconds`."""
        if self._latency is not None:
            safely(self._latency.observe, seconds)
            if entries:
                safely(self._read.inc, entries)

    def acked(self, entries: int) -> None:
        if self._acked is not None and entries:
            safely(self._acked.inc, entries)

    def claimed(self, entries: int) -> None:
        if self._claimed is not None and entries:
            safely(self._claimed.inc, entries)


@registered
def _families(prometheus: Any) -> tuple[Any, ...]:
    labels = ("stream",)
    return (
        prometheus.Counter("conquiet_queue_messages_read_total", "Entries delivered by XREADGROUP", labels),
        prometheus.Counter("conquiet_queue_messages_ack_total", "Entries for which XACK was sent", labels),
        prometheus.Counter("conquiet_queue_messages_claimed_total", "Entries taken over by XCLAIM", labels),
        prometheus.Histogram(
            "conquiet_queue_read_latency_seconds", "Duration of XREADGROUP, blocking included", labels
        ),
    )
