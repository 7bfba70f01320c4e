"""The case of an attempt, its result, and how the result is reported: log records, a span, metrics."""

from __future__ import annotations

from contextvars import copy_context
from datetime import datetime
from typing import Any, Final, NamedTuple

from conquiet.observe import RECONCILE_METRICS, SafeLogger, Spans
from conquiet.reconcile.rules import AlertRule, Level, Status
from conquiet.reconcile.verdict import Metrics

__all__ = ["POSTPONED", "Case", "ReconciliationResult", "say", "start_span"]

POSTPONED: Final = "postponed"  # as an error code: the attempt is still to be made, at `scheduled_retry_at`

_log = SafeLogger("conquiet.reconcile")


class Case(NamedTuple):
    """A report and the attempt to make."""

    report_id: int
    attempt: int
    affiliate_id: str
    platform: str
    post_id: str
    claimed: Metrics
    submitted_at: datetime
    correlation_id: str | None


class ReconciliationResult(NamedTuple):
    """How an attempt ended. `applied` is False if it was recorded before and nothing was changed.

    With the error code `postponed` it was not made: it follows at `scheduled_retry_at`.
    """

    report_id: int
    attempt: int
    status: Status
    level: Level | None
    scheduled_retry_at: datetime | None
    error_code: str | None
    applied: bool
    alert: AlertRule | None = None  # raised by this attempt

    @property
    def is_final(self) -> bool:
        return self.scheduled_retry_at is None


def start_span(report_id: int, attempt: int, correlation_id: str | None) -> Any:
    spans = Spans.if_wanted("conquiet.reconcile")
    if spans is None:
        return None
    attributes: dict[str, Any] = {"conquiet.report_id": report_id, "conquiet.report_attempt": attempt}
    if correlation_id is not None:
        attributes["conquiet.correlation_id"] = correlation_id
    return spans.start("reconcile", copy_context(), attributes)


def say(result: ReconciliationResult, correlation_id: str | None) -> None:
    """Log and count a result; called after the commit."""
    fields = {
        "report_id": result.report_id,
        "attempt": result.attempt,
        "status": result.status.value,
        "correlation_id": correlation_id,
    }
    if result.error_code == POSTPONED:
        _log.info(
            "report %s, attempt %s: postponed until %s, because the platform asks for fewer calls",
            result.report_id,
            result.attempt,
            result.scheduled_retry_at,
            extra={"event": "attempt_postponed", **fields},
        )
        return
    if not result.applied:
        _log.info(
            "report %s, attempt %s was recorded before (%s): nothing was changed",
            result.report_id,
            result.attempt,
            result.status.value,
            extra={"event": "report_redelivered", **fields},
        )
        return
    RECONCILE_METRICS.reconciled(result.status.value)
    _log.info(
        "report %s, attempt %s: %s%s",
        result.report_id,
        result.attempt,
        result.status.value,
        f" ({result.error_code})" if result.error_code else "",
        extra={"event": "report_reconciled", "error_code": result.error_code, **fields},
    )
    if result.alert is not None:
        kind, severity = result.alert.kind, result.alert.severity
        RECONCILE_METRICS.alerted(kind, severity)
        _log.warning(
            "alert (%s, %s): report %s is %s",
            kind,
            severity,
            result.report_id,
            result.status.value,
            extra={"event": "alert_raised", "kind": kind, "severity": severity, **fields},
        )
