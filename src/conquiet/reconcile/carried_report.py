"""Reports that were judged elsewhere before: the job of their next attempt carries them whole, and they are taken over.

That is how retries of the Spark pipeline get into the tables of this room. The number of a report is then somebody
else's: such reports belong in a database of their own, not beside those of an intake, which numbers them itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy.orm import Session

from conquiet.errors import ReconcileConfigError
from conquiet.reconcile.database import insert_or_ignore
from conquiet.reconcile.intake.submission import Submission
from conquiet.reconcile.job import ReconciliationJob
from conquiet.reconcile.models import AffiliateReport, table_of
from conquiet.reconcile.result import Case
from conquiet.reconcile.rules import DEFAULT_RULES, Rules
from conquiet.reconcile.verdict import risk_priority

__all__ = ["adopt_report", "carries_report", "refuse_another"]

_REPORTS = table_of(AffiliateReport)
_FIELDS = tuple(Submission.__slots__)


def carries_report(payload: object) -> bool:
    """Whether the job holds its report whole."""
    return isinstance(payload, Mapping) and all(payload.get(name) is not None for name in _FIELDS)


def adopt_report(
    session: Session,
    job: ReconciliationJob,
    payload: Mapping[str, Any],
    now: datetime,
    rules: Rules = DEFAULT_RULES,
) -> None:
    """Store the report in `payload` as one whose earlier attempts were made elsewhere. A second time changes nothing."""
    report = Submission.from_payload({name: payload[name] for name in _FIELDS}, now)
    values = {name: getattr(report, name) for name in _FIELDS}
    values |= {"id": job.affiliate_report_id, "attempts": job.attempt - 1, "received_at": now}
    values |= {"priority": risk_priority(report, rules), "correlation_id": job.correlation_id}
    insert_or_ignore(session.connection(), _REPORTS, values)


def refuse_another(case: Case, payload: Mapping[str, Any]) -> None:
    """Two that number reports, in one database, would mix them up: say so instead."""
    ours = (case.affiliate_id, case.platform, case.post_id)
    if ours != (payload["affiliate_id"], payload["platform"], payload["post_id"]):
        raise ReconcileConfigError(
            f"report {case.report_id} is another one in this database: keep reports that were numbered elsewhere in a "
            "database of their own"
        )
