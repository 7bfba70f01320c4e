"""Reports carried in the payload of a job: their earlier attempts were made elsewhere, by the Spark pipeline.

They are stored here when the job of their next attempt arrives. Their ids are assigned elsewhere, so they need a
separate database from the reports of an intake, which assigns ids itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy.orm import Session

from conquiet.errors import ReconcileConfigError
from conquiet.reconcile.database import insert_or_ignore
from conquiet.reconcile.intake.submission import Submission, checked_name
from conquiet.reconcile.job import ReconciliationJob
from conquiet.reconcile.models import AffiliateReport, table_of
from conquiet.reconcile.result import Case
from conquiet.reconcile.rules import DEFAULT_RULES, Rules
from conquiet.reconcile.verdict import risk_priority

__all__ = ["adopt_report", "carries_report", "refuse_another"]

_REPORTS = table_of(AffiliateReport)
_FIELDS = tuple(Submission.__slots__)


def carries_report(payload: object) -> bool:
    """Return whether the payload of a job contains its whole report."""
    return isinstance(payload, Mapping) and all(payload.get(name) is not None for name in _FIELDS)


def adopt_report(
    session: Session,
    job: ReconciliationJob,
    payload: Mapping[str, Any],
    now: datetime,
    rules: Rules = DEFAULT_RULES,
) -> None:
    """Store the report in `payload`, whose earlier attempts were made elsewhere. Doing so twice changes nothing."""
    report = Submission.from_payload({name: payload[name] for name in _FIELDS}, now)
    values = {name: getattr(report, name) for name in _FIELDS}
    values |= {"id": job.affiliate_report_id, "attempts": job.attempt - 1, "received_at": now}
    values |= {"priority": risk_priority(report, rules), "correlation_id": job.correlation_id}
    insert_or_ignore(session.connection(), _REPORTS, values)


def refuse_another(case: Case, payload: Mapping[str, Any]) -> None:
    """Raise if the stored report with this id differs, because two sides assigned ids in one database."""
    ours = (case.affiliate_id, case.platform, case.post_id)
    if ours != tuple(checked_name(name, payload[name]) for name in ("affiliate_id", "platform", "post_id")):
        raise ReconcileConfigError(
            f"report {case.report_id} is another one in this database: keep reports that were numbered elsewhere in a "
            "separate database"
        )
