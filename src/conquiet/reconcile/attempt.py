"""One attempt at one report: read it, ask the platform, judge, and write all effects in one transaction.

The three steps are `read_case`, `PlatformFetcher.fetch` and `record_attempt`; `run_reconciliation` runs all of them. The
row (report, attempt) is inserted first, and the transaction that inserts it applies trust, alert and retry. A second
delivery finds the row, waits for its transaction if necessary, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Protocol

from sqlalchemy import Connection, bindparam, null, select
from sqlalchemy.orm import Session

from conquiet.clock import SYSTEM_CLOCK, Clock, utc
from conquiet.errors import (
    AttemptOrderError,
    DamagedRowError,
    ReconcileConfigError,
    ReportNotFoundError,
    redact,
)
from conquiet.observe import RECONCILE_METRICS, SafeLogger
from conquiet.reconcile.alerts import raise_alert
from conquiet.reconcile.database import insert_or_ignore
from conquiet.reconcile.models import AffiliateReport, Alert, ReportAttempt, ScheduledAttempt, table_of
from conquiet.reconcile.platforms.fetcher import FetchOutcome
from conquiet.reconcile.platforms.postponement import delay_of, postpone_attempt
from conquiet.reconcile.result import Case, ReconciliationResult, say, start_span
from conquiet.reconcile.rules import DEFAULT_RULES, Level, Rules, Status
from conquiet.reconcile.trust import record_trust
from conquiet.reconcile.verdict import Metrics, alert_for, classify, elapsed_hours, retry_at

__all__ = ["Fetcher", "end_damaged", "read_case", "record_attempt", "run_reconciliation"]

_log = SafeLogger("conquiet.reconcile")
_CLAIMS = ("claimed_views", "claimed_clicks", "claimed_conversions")
_REPORTS, _ATTEMPTS, _SCHEDULED, _ALERTS = (
    table_of(AffiliateReport),
    table_of(ReportAttempt),
    table_of(ScheduledAttempt),
    table_of(Alert),
)


class Fetcher(Protocol):
    """The interface through which reconciliation asks platforms; `PlatformFetcher` implements it."""

    def fetch(self, platform: str, post_id: str) -> FetchOutcome: ...


def run_reconciliation(
    report_id: int,
    *,
    fetcher: Fetcher,
    session_factory: Callable[[], Session] | None = None,
    session: Session | None = None,
    rules: Rules = DEFAULT_RULES,
    clock: Clock = SYSTEM_CLOCK,
    attempt: int = 1,
    correlation_id: str | None = None,
    commit: bool = False,
    postpone: bool = False,
) -> ReconciliationResult:
    """Make attempt number `attempt` at a report. If it is already recorded, return its result.

    With `session_factory` it commits, and holds no transaction while the platform is asked. With `session` everything
    happens in the caller's transaction, which the caller commits, for example together with the ack of a job. With
    `commit` as well, the session is committed here, before the platform is asked and at the end.

    With `postpone`, and if the platform has asked for fewer calls, it is not asked now: the attempt is scheduled for later,
    nothing is recorded, and the result has the error code `postponed`. A `RetryScheduler` must be running.
    """
    if (session_factory is None) == (session is None):
        raise ReconcileConfigError("run_reconciliation needs either session_factory or session")
    if type(attempt) is not int or attempt < 1:
        raise ReconcileConfigError(f"attempt must be an int of at least 1, not {attempt!r}")
    span = start_span(report_id, attempt, correlation_id)
    try:
        try:
            with _scope(session_factory, session, commit) as own:
                found = read_case(own, report_id, attempt)
        except DamagedRowError as error:
            with _scope(session_factory, session, commit) as own:
                end_damaged(own, report_id, attempt, error, utc(clock.time()))
            raise
        if isinstance(found, ReconciliationResult):
            result = found
        elif postpone and (wait := delay_of(fetcher, found.platform)):
            with _scope(session_factory, session, commit) as own:
                result = postpone_attempt(own, found, utc(clock.time()) + timedelta(seconds=wait))
        else:
            outcome = fetcher.fetch(found.platform, found.post_id)
            with _scope(session_factory, session, commit) as own:
                result = record_attempt(own, found, outcome, rules=rules, now=utc(clock.time()))
        if span is not None:
            span.set_attribute("conquiet.status", result.status.value)
    finally:
        if span is not None:
            span.end()
    say(result, correlation_id or (found.correlation_id if isinstance(found, Case) else None))
    return result


def read_case(session: Session, report_id: int, attempt: int) -> Case | ReconciliationResult:
    """Return the case to judge, or the result if this attempt, or one that finished the report, is recorded."""
    connection = session.connection()
    try:
        row = connection.execute(_READ, {"report_id": report_id}).first()
    except ValueError as error:  # SQLite keeps any text as a time
        raise DamagedRowError(f"report {report_id} cannot be read: {redact(str(error))}") from error
    if row is None:
        raise ReportNotFoundError(f"there is no report {report_id}")
    for name in _CLAIMS:  # SQLite keeps any text as a number
        if type(getattr(row, name)) is not int:
            raise DamagedRowError(f"report {report_id} cannot be judged: its {name} is not a whole number")
    if attempt <= row.attempts or row.finished_at is not None:
        connection.execute(_UNSCHEDULE, {"of_report": report_id, "up_to": attempt})
        return _recorded(connection, report_id, min(attempt, row.attempts))
    if attempt > row.attempts + 1:
        raise AttemptOrderError(
            f"report {report_id} has had {row.attempts} attempts: number {attempt} cannot be the next"
        )
    return Case(
        report_id,
        attempt,
        row.affiliate_id,
        row.platform,
        row.post_id,
        Metrics(row.claimed_views, row.claimed_clicks, row.claimed_conversions),
        row.submitted_at,
        row.correlation_id,
    )


def end_damaged(
    session: Session, report_id: int, attempt: int, error: DamagedRowError, now: datetime
) -> None:
    """End a report that no attempt can judge, with an alert; otherwise it would be tried for ever."""
    connection = session.connection()
    ended = connection.execute(_END, {"of_report": report_id, "finished_at": now}).rowcount
    connection.execute(_UNSCHEDULE, {"of_report": report_id, "up_to": attempt})
    if not ended:
        return  # it has been said
    values = {"report_id": report_id, "status": "DAMAGED", "attempt": attempt, "raised_at": now}
    insert_or_ignore(connection, _ALERTS, values | {"kind": "data_quality", "severity": "high"})
    RECONCILE_METRICS.alerted("data_quality", "high")
    _log.error(
        "alert (data_quality, high): %s. It has ended without a verdict; to try again, correct the row and set its "
        "finished_at to NULL",
        error,
        extra={"event": "report_damaged", "report_id": report_id, "attempt": attempt},
    )


def record_attempt(
    session: Session, case: Case, outcome: FetchOutcome, *, rules: Rules = DEFAULT_RULES, now: datetime
) -> ReconciliationResult:
    """Judge the case and write verdict, trust, alert and next attempt. Writes nothing if the attempt is recorded."""
    verdict = classify(
        case.claimed, outcome.metrics, elapsed_hours(case.submitted_at, outcome.observed_at), rules
    )
    connection = session.connection()
    next_at = retry_at(
        verdict.status,
        case.attempt,
        case.submitted_at,
        now,
        rules,
        wait_seconds=outcome.retry_after or 0.0,
        earlier=_earlier(connection, case, verdict.status, rules),
    )
    is_ours = insert_or_ignore(
        connection,
        _ATTEMPTS,
        {
            "report_id": case.report_id,
            "attempt": case.attempt,
            "attempted_at": now,
            "observed_at": None if outcome.error_code else outcome.observed_at,
            "status": verdict.status.value,
            "level": verdict.level,
            "observed_views": outcome.metrics.views,
            "observed_clicks": outcome.metrics.clicks,
            "observed_conversions": outcome.metrics.conversions,
            "max_diff": verdict.max_diff,
            "confidence": verdict.confidence,
            "missing_fields": ",".join(verdict.missing_fields),
            "error_code": outcome.error_code,
            "error_detail": outcome.detail or None,
            "scheduled_retry_at": next_at,
        },
    )
    if not is_ours:
        return _recorded(connection, case.report_id, case.attempt)
    advanced = connection.execute(
        _ADVANCE,
        {
            "of_report": case.report_id,
            "done": case.attempt - 1,
            "attempts": case.attempt,
            "status": verdict.status.value,
            "level": verdict.level,
            "scheduled_retry_at": next_at,
            "finished_at": now if next_at is None else None,
        },
    )
    if advanced.rowcount != 1:
        raise AttemptOrderError(
            f"report {case.report_id} changed during attempt {case.attempt}: the attempt was not recorded"
        )
    connection.execute(_UNSCHEDULE, {"of_report": case.report_id, "up_to": case.attempt})
    if next_at is not None:
        scheduled = {"report_id": case.report_id, "attempt": case.attempt + 1, "due_at": next_at}
        insert_or_ignore(connection, _SCHEDULED, scheduled | {"enqueued_at": None})
    if verdict.trust_event is not None:
        record_trust(
            connection,
            report_id=case.report_id,
            attempt=case.attempt,
            affiliate_id=case.affiliate_id,
            event=verdict.trust_event,
            now=now,
            rules=rules,
        )
    alert = alert_for(verdict.status, verdict.level, next_at is not None, rules)
    if alert is not None and not raise_alert(
        connection, alert, report_id=case.report_id, attempt=case.attempt, now=now
    ):
        alert = None
    return ReconciliationResult(
        case.report_id,
        case.attempt,
        verdict.status,
        verdict.level,
        next_at,
        outcome.error_code,
        applied=True,
        alert=alert,
    )


def _earlier(connection: Connection, case: Case, status: Status, rules: Rules) -> list[str] | None:
    """Return how the earlier attempts that are recorded here ended, if the rule of `status` depends on it."""
    if case.attempt == 1 or not any(rule.own_attempts and rule.status is status for rule in rules.retries):
        return None
    return list(
        connection.execute(_STATUSES, {"report_id": case.report_id, "attempt": case.attempt}).scalars()
    )


_STATUSES = select(_ATTEMPTS.c.status).where(
    _ATTEMPTS.c.report_id == bindparam("report_id"), _ATTEMPTS.c.attempt < bindparam("attempt")
)
_READ = select(
    *(
        _REPORTS.c[name]
        for name in (
            "affiliate_id", "platform", "post_id", "claimed_views", "claimed_clicks", "claimed_conversions",
            "submitted_at", "correlation_id", "attempts", "finished_at",
        )
    )
).where(_REPORTS.c.id == bindparam("report_id"))  # fmt: skip
_END = (
    _REPORTS.update()
    .where(_REPORTS.c.id == bindparam("of_report"), _REPORTS.c.finished_at.is_(None))
    .values(finished_at=bindparam("finished_at"), scheduled_retry_at=null())
)
_ADVANCE = (
    _REPORTS.update()
    .where(
        _REPORTS.c.id == bindparam("of_report"),
        _REPORTS.c.attempts == bindparam("done"),
        _REPORTS.c.finished_at.is_(None),
    )
    .values(
        {
            name: bindparam(name)
            for name in ("attempts", "status", "level", "scheduled_retry_at", "finished_at")
        }
    )
)
# A row in scheduled_attempts stands for an attempt that is still to be made; this one has been made.
_UNSCHEDULE = _SCHEDULED.delete().where(
    _SCHEDULED.c.report_id == bindparam("of_report"), _SCHEDULED.c.attempt <= bindparam("up_to")
)
_RECORDED = select(
    _ATTEMPTS.c.status, _ATTEMPTS.c.level, _ATTEMPTS.c.scheduled_retry_at, _ATTEMPTS.c.error_code
).where(_ATTEMPTS.c.report_id == bindparam("report_id"), _ATTEMPTS.c.attempt == bindparam("attempt"))


def _recorded(connection: Connection, report_id: int, attempt: int) -> ReconciliationResult:
    row = connection.execute(_RECORDED, {"report_id": report_id, "attempt": attempt}).one()
    level = None if row.level is None else Level(row.level)
    return ReconciliationResult(
        report_id,
        attempt,
        Status(row.status),
        level,
        row.scheduled_retry_at,
        row.error_code,
        applied=False,
    )


@contextmanager
def _scope(factory: Callable[[], Session] | None, session: Session | None, commit: bool) -> Iterator[Session]:
    """Yield a new session, committed and closed at the end, or the caller's, committed if `commit`."""
    if session is not None:
        yield session
        if commit:
            session.commit()
        return
    assert factory is not None
    with factory() as own:  # closing it rolls back what is not committed
        yield own
        own.commit()
