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

    def postponed(self, platform: str) -> None:
        _count("postponed", platform)

    def received(self, outcome: str) -> None:
        _count("intake", outcome)

    def alerted(self, kind: str, severity: str) -> None:
        _count("alerts", kind, severity)

    def waiting(self, attempts: int, overdue_seconds: float) -> None:
        safely(_set_waiting, attempts, overdue_seconds)


METRICS = ReconcileMetrics()


def _count(family: str, *labels: str) -> None:
    safely(_counted, family, *labels)


def _counted(family: str, *labels: str) -> None:
    families = _families()
    if families is not None:
        families[family].labels(*labels).inc()


def _set_waiting(attempts: int, overdue_seconds: float) -> None:
    families = _families()
    if families is not None:
        families["waiting"].set(attempts)
        families["overdue"].set(overdue_seconds)


@registered
def _families(prometheus: Any) -> dict[str, Any]:
    return {
        "reconciliations": prometheus.Counter(
            "conquiet_reconciliations_total", "Attempts recorded, by their status", ("status",)
        ),
        "fetches": prometheus.Counter(
            "conquiet_platform_fetches_total", "Requests to platforms, by outcome", ("platform", "outcome")
        ),
        "postponed": prometheus.Counter(
            "conquiet_attempts_postponed_total",
            "Attempts put off because a platform asks for fewer calls",
            ("platform",),
        ),
        "intake": prometheus.Counter(
            "conquiet_intake_reports_total", "Submitted reports, by the answer", ("outcome",)
        ),
        "alerts": prometheus.Counter("conquiet_alerts_total", "Alerts raised", ("kind", "severity")),
        "waiting": prometheus.Gauge(
            "conquiet_attempts_waiting", "Attempts that wait in the database, for their time or for room"
        ),
        "overdue": prometheus.Gauge(
            "conquiet_attempts_overdue_seconds", "Seconds since the first of these attempts was due"
        ),
    }
