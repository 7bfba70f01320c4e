"""Prometheus metrics of the reconciliation; nothing is recorded without prometheus_client."""

from __future__ import annotations

from typing import Any

from conquiet.observe.failsafe import registered, safely

__all__ = ["METRICS", "ReconcileMetrics"]


class ReconcileMetrics:
    """Labels are names from the configuration or the rules, never values sent by a client."""

    def reconciled(self, status: str) -> None:
        _count("reconciliations", status)

    def fetched(self, platform: str, outcome: str) -> None:
        _count("fetches", platform, outcome)

    def received(self, outcome: str) -> None:
        _count("intake", outcome)


METRICS = ReconcileMetrics()


def _count(family: str, *labels: str) -> None:
    safely(_counted, family, *labels)


def _counted(family: str, *labels: str) -> None:
    families = _families()
    if families is not None:
        families[family].labels(*labels).inc()


@registered
def _families(prometheus: Any) -> dict[str, Any]:
    return {
        "reconciliations": prometheus.Counter(
            "conquiet_reconciliations_total", "Attempts recorded, by their status", ("status",)
        ),
        "fetches": prometheus.Counter(
            "conquiet_platform_fetches_total", "Requests to platforms, by outcome", ("platform", "outcome")
        ),
        "intake": prometheus.Counter(
            "conquiet_intake_reports_total", "Submitted reports, by the answer", ("outcome",)
        ),
    }
