"""Stored alerts: at most one for each report and status, even if an attempt is delivered more than once."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection, select
from sqlalchemy.orm import Session

from conquiet.reconcile.database import insert_or_ignore
from conquiet.reconcile.models import Alert, table_of
from conquiet.reconcile.rules import AlertRule

__all__ = ["alerts_of", "raise_alert"]

_ALERTS = table_of(Alert)


def alerts_of(session: Session, report_id: int) -> list[Alert]:
    """Return the alerts of a report, oldest first."""
    return list(
        session.scalars(
            select(Alert).where(Alert.report_id == report_id).order_by(Alert.raised_at, Alert.status)
        )
    )


def raise_alert(
    connection: Connection, rule: AlertRule, *, report_id: int, attempt: int, now: datetime
) -> bool:
    """Store the alert of `rule`. Return False if the report already has an alert for this status."""
    return insert_or_ignore(
        connection,
        _ALERTS,
        {
            "report_id": report_id,
            "status": rule.status.value,
            "attempt": attempt,
            "kind": rule.kind,
            "severity": rule.severity,
            "raised_at": now,
        },
    )
