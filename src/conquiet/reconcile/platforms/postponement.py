"""Attempts that are not made now, because the platform has asked for fewer calls."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from conquiet.observe import RECONCILE_METRICS
from conquiet.reconcile.models import ScheduledAttempt, table_of
from conquiet.reconcile.platforms.fetcher import NOTHING, FetchError, FetchOutcome
from conquiet.reconcile.result import POSTPONED, Case, ReconciliationResult
from conquiet.reconcile.rules import Status

__all__ = ["delay_of", "not_asked", "postpone_attempt"]

_SCHEDULED = table_of(ScheduledAttempt)


def delay_of(fetcher: Any, platform: str) -> float:
    """Return the seconds before the platform may be asked; 0 for fetchers that keep no pace."""
    delay_for = getattr(fetcher, "delay_for", None)
    return 0.0 if delay_for is None else float(delay_for(platform))


def not_asked(platform: str, wait: float, now: datetime) -> FetchOutcome:
    """The outcome of a fetch that is not made for another `wait` seconds."""
    detail = f"{platform} has asked for fewer calls: it is not asked for another {wait:.3g} s"
    return FetchOutcome(NOTHING, now, FetchError.RATE_LIMITED, detail, wait)


def postpone_attempt(session: Session, case: Case, until: datetime) -> ReconciliationResult:
    """Schedule the attempt for later. It is not counted: only calls to a platform use up attempts."""
    connection = session.connection()
    insert = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    values = {"report_id": case.report_id, "attempt": case.attempt, "due_at": until, "enqueued_at": None}
    again = {"due_at": until, "enqueued_at": None}
    connection.execute(
        insert(_SCHEDULED)
        .values(values)
        .on_conflict_do_update(index_elements=["report_id", "attempt"], set_=again)
    )
    RECONCILE_METRICS.postponed(case.platform)
    return ReconciliationResult(
        case.report_id,
        case.attempt,
        Status.MISSING_PLATFORM_DATA,
        None,
        until,
        POSTPONED,
        applied=False,
    )
