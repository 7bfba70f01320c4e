"""Prometheus metrics of the reconciliation; nothing happens where prometheus_client is not installed."""

from __future__ import annotations

import logging
import threading
from functools import cache
from typing import Any

__all__ = ["METRICS", "ReconcileMetrics"]

_log = logging.getLogger("conquiet.observe")


class ReconcileMetrics:
    """Labels are names that the operator chose or the rules declare, never what a client sent."""

    def reconciled(self, status: str) -> None:
        _count("reconciliations", status)

    def fetched(self, platform: str, outcome: str) -> None:
        _count("fetches", platform, outcome)

    def received(self, outcome: str) -> None:
        _count("intake", outcome)


METRICS = ReconcileMetrics()
_REGISTERING = threading.Lock()


def _count(family: str, *labels: str) -> None:
    try:
        with _REGISTERING:  # two threads at once would register twice, which is an error
            families = _families()
        if families is not None:
            families[family].labels(*labels).inc()
    except Exception:  # noqa: BLE001 - metrics are not worth a report
        _say_once()


@cache
def _say_once() -> None:
    _log.exception("the metrics backend failed; reconciliation goes on, metrics may be wrong (said once)")


@cache
def _families() -> dict[str, Any] | None:
    try:
        from prometheus_client import Counter
    except ImportError:
        return None
    return {
        "reconciliations": Counter(
            "conquiet_reconciliations_total", "Attempts recorded, by their status", ("status",)
        ),
        "fetches": Counter(
            "conquiet_platform_fetches_total", "Platforms asked, by what came of it", ("platform", "outcome")
        ),
        "intake": Counter("conquiet_intake_reports_total", "Reports handed in, by the answer", ("outcome",)),
    }
