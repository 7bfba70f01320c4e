"""The intake of a report: check, rate limit, store, enqueue, in that order. HTTP is in `http.py`.

A report is stored before it is enqueued. If the queue then refuses it, the scheduler makes the first attempt later;
if the process dies in between, `resume` finds it. A report that was answered with "accepted" is never lost.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from datetime import datetime, timedelta
from typing import Any, NamedTuple, Protocol

from sqlalchemy import insert, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from conquiet.clock import SYSTEM_CLOCK, Clock, utc
from conquiet.errors import (
    ConquietError,
    IntakeBusyError,
    KeyReusedError,
    ReconcileConfigError,
    ReportRefusedError,
    redact,
)
from conquiet.local import PriorityDelayQueue
from conquiet.observe import SafeLogger
from conquiet.reconcile.intake.backlog import Backlog
from conquiet.reconcile.intake.rate_limit import RateLimiter
from conquiet.reconcile.intake.submission import Submission
from conquiet.reconcile.job import JobQueue, ReconciliationJob
from conquiet.reconcile.models import AffiliateReport, table_of
from conquiet.reconcile.rules import DEFAULT_RULES, Rules
from conquiet.reconcile.scheduler import schedule_attempt
from conquiet.reconcile.trust import trust_score
from conquiet.reconcile.verdict import risk_priority

__all__ = ["Accepted", "IntakeDesk", "Limiter"]

_log = SafeLogger("conquiet.reconcile")
_REPORTS = table_of(AffiliateReport)


class Accepted(NamedTuple):
    report_id: int
    priority: str
    correlation_id: str | None
    is_new: bool  # False: the same report was received before under the same key
    delay_seconds: float = 0.0  # until the first attempt, for affiliates with little trust


class Limiter(Protocol):
    """The limit on how often each affiliate may submit; `RateLimiter` and `SharedRateLimiter` implement it."""

    def wait_for(self, name: str, /) -> float: ...


class IntakeDesk:
    """Accepts reports; thread-safe. `platforms` are those that reports may name; None means any.

    `limiter` is the rate per affiliate; without one it is counted in this process.
    """

    def __init__(
        self,
        session_factory: Callable[[], Session],
        queue: JobQueue,
        *,
        platforms: Collection[str] | None = None,
        rules: Rules = DEFAULT_RULES,
        clock: Clock = SYSTEM_CLOCK,
        busy_seconds: float = 5.0,
        limiter: Limiter | None = None,
    ) -> None:
        if isinstance(queue, PriorityDelayQueue):
            for label in (rules.risk.suspicious_priority, rules.risk.usual_priority):
                if label not in queue.settings.priorities:
                    raise ReconcileConfigError(f"the queue has no priority {label!r}, which the rules use")
        self._session_factory = session_factory
        self._queue = queue
        self._platforms = platforms
        self._rules = rules
        self._clock = clock
        self._busy_seconds = busy_seconds
        self._limiter = limiter or RateLimiter(rules.intake, clock)

    def submit(
        self, payload: Mapping[str, Any], correlation_id: str | None = None, key: str | None = None
    ) -> Accepted:
        """Accept a report. If it raises `ReportRefusedError` or `IntakeBusyError`, nothing was stored."""
        now = utc(self._clock.time())
        report = Submission.from_payload(payload, now, self._platforms)
        self._check_queue()
        wait = self._limiter.wait_for(report.affiliate_id)
        if wait:
            limit = self._rules.intake
            raise IntakeBusyError(
                "rate_limited",
                f"an affiliate may submit {limit.per_minute:g} reports a minute, in bursts of {limit.burst}",
                wait,
            )
        accepted = self._too_old(report, key, now) or self._store(report, correlation_id, key, now)
        if accepted.is_new:
            self._enqueue(accepted, now)
        return accepted

    def queue_state(self) -> dict[str, Any]:
        if isinstance(self._queue, PriorityDelayQueue):
            return dict(self._queue.snapshot())
        backlog = _backlog(self._queue)
        return {} if backlog is None else {"depth": backlog.depth()}

    def _check_queue(self) -> None:
        """Refuse a report before anything is stored, so that a flood of reports does not fill the database."""
        queue = self._queue
        if not isinstance(queue, PriorityDelayQueue):
            backlog = _backlog(queue)
            if backlog is not None and backlog.is_full():
                raise IntakeBusyError(
                    "queue_full", f"{backlog.depth()} reports are waiting already", self._busy_seconds
                )
            return
        state = queue.snapshot()
        if state["shutdown"]:
            raise IntakeBusyError(
                "shutting_down", "no more reports are accepted here: try again", self._busy_seconds
            )
        if state["depth"] >= queue.settings.max_in_memory:
            raise IntakeBusyError(
                "queue_full", f"{state['depth']} reports are waiting already", self._busy_seconds
            )

    def _store(
        self, report: Submission, correlation_id: str | None, key: str | None, now: datetime
    ) -> Accepted:
        priority = risk_priority(report, self._rules)
        values = {name: getattr(report, name) for name in report.__slots__}
        values |= {"received_at": now, "priority": priority, "attempts": 0}
        values |= {"correlation_id": correlation_id, "idempotency_key": key}
        with self._session_factory() as session:
            try:
                report_id = session.execute(insert(_REPORTS).returning(_REPORTS.c.id), values).scalar_one()
                delay = self._delay(session, report.affiliate_id)
                if delay:  # it waits in the database, where it takes nobody's place in the queue
                    schedule_attempt(session, report_id, 1, now + timedelta(seconds=delay))
                session.commit()
                return Accepted(int(report_id), priority, correlation_id, True, delay)
            except IntegrityError:
                session.rollback()
                before = self._found(session, report, key, now)
                if before is None:
                    raise  # not caused by a report that was received before
                return before

    def _too_old(self, report: Submission, key: str | None, now: datetime) -> Accepted | None:
        """Refuse a report from before `max_age_seconds`, unless it was accepted in time and is sent again."""
        oldest = self._rules.intake.max_age_seconds
        if oldest is None or (now - report.submitted_at).total_seconds() <= oldest:
            return None
        if key is not None:
            with self._session_factory() as session:
                before = self._found(session, report, key, now)
            if before is not None:
                return before
        raise ReportRefusedError(
            f"submitted_at is {report.submitted_at.isoformat()}, more than {oldest:g} s ago: it is {now.isoformat()} now. "
            "Leave it out, and the report counts from its receipt",
            "submitted_at",
        )

    def _delay(self, session: Session, affiliate_id: str) -> float:
        limit = self._rules.intake
        if not limit.low_trust_delay_seconds:  # then the ledger is not read
            return 0.0
        is_low = trust_score(session, affiliate_id, self._rules) < limit.low_trust_below
        return limit.low_trust_delay_seconds if is_low else 0.0

    def _found(self, session: Session, report: Submission, key: str | None, now: datetime) -> Accepted | None:
        statement = select(_REPORTS).where(
            _REPORTS.c.affiliate_id == report.affiliate_id, _REPORTS.c.idempotency_key == key
        )
        row = session.execute(statement).first()
        if row is None:
            return None
        # The default of submitted_at is the time of receipt: left out now, it must have been left out before.
        submitted_at = row.received_at if report.submitted_at == now else report.submitted_at
        same = all(
            getattr(row, name) == getattr(report, name) for name in report.__slots__ if name != "submitted_at"
        )
        if not same or row.submitted_at != submitted_at:
            raise KeyReusedError(
                f"that key was used before, for report {row.id}, with other content", "Idempotency-Key"
            )
        return Accepted(row.id, row.priority, row.correlation_id, is_new=False)

    def _enqueue(self, accepted: Accepted, now: datetime) -> None:
        job = ReconciliationJob(accepted.report_id, accepted.priority, now, accepted.correlation_id)
        left = ""
        try:
            if accepted.delay_seconds:
                left = f", for an affiliate with little trust: begins in {accepted.delay_seconds:g} s"
            else:
                self._queue.enqueue(job, priority=accepted.priority, delay_seconds=0.0)
        except ConquietError as error:  # full, shut down or unavailable since the check
            left = f", and left to the scheduler: {redact(str(error))}"
            with self._session_factory() as session:
                schedule_attempt(session, accepted.report_id, 1, now)
                session.commit()
        _log.info(
            "report %s accepted with priority %s%s",
            accepted.report_id,
            accepted.priority,
            left,
            extra={
                "event": "report_accepted",
                "report_id": accepted.report_id,
                "priority": accepted.priority,
                "correlation_id": accepted.correlation_id,
                "delay_seconds": accepted.delay_seconds,
            },
        )


def _backlog(queue: JobQueue) -> Backlog | None:
    """The limit of a queue outside the process, if it has one."""
    found = getattr(queue, "backlog", None)
    return found if isinstance(found, Backlog) else None
