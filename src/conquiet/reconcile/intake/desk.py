"""The intake of a report: check, rate limit, store, enqueue, in that order. HTTP is in `http.py`.

A report is stored before it is enqueued. If the queue then refuses it, the scheduler makes the first attempt later;
if the process dies in between, `resume` finds it. A report that was answered with "accepted" is never lost.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import insert, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from conquiet.clock import SYSTEM_CLOCK, Clock, utc
from conquiet.errors import ConquietError, IntakeBusyError, KeyReusedError, ReconcileConfigError, redact
from conquiet.local import PriorityDelayQueue
from conquiet.reconcile.intake.rate_limit import RateLimiter
from conquiet.reconcile.intake.submission import Submission
from conquiet.reconcile.job import JobQueue, ReconciliationJob
from conquiet.reconcile.models import AffiliateReport, table_of
from conquiet.reconcile.rules import DEFAULT_RULES, Rules
from conquiet.reconcile.scheduler import schedule_attempt
from conquiet.reconcile.verdict import risk_priority

__all__ = ["Accepted", "IntakeDesk"]

_log = logging.getLogger("conquiet.reconcile")
_REPORTS = table_of(AffiliateReport)


class Accepted(NamedTuple):
    report_id: int
    priority: str
    correlation_id: str | None
    is_new: bool  # False: the same report was received before under the same key


class IntakeDesk:
    """Accepts reports; thread-safe. `platforms` are those that reports may name; None means any."""

    def __init__(
        self,
        session_factory: Callable[[], Session],
        queue: JobQueue,
        *,
        platforms: Collection[str] | None = None,
        rules: Rules = DEFAULT_RULES,
        clock: Clock = SYSTEM_CLOCK,
        busy_seconds: float = 5.0,
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
        self._limiter = RateLimiter(rules.intake, clock)

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
        accepted = self._store(report, correlation_id, key, now)
        if accepted.is_new:
            self._enqueue(accepted, now)
        return accepted

    def queue_state(self) -> dict[str, Any]:
        return dict(self._queue.snapshot()) if isinstance(self._queue, PriorityDelayQueue) else {}

    def _check_queue(self) -> None:
        """Refuse a report before anything is stored, so that a flood of reports does not fill the database."""
        queue = self._queue
        if not isinstance(queue, PriorityDelayQueue):
            return  # a queue outside the process; its limit is not known here
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
                session.commit()
                return Accepted(int(report_id), priority, correlation_id, is_new=True)
            except IntegrityError:
                session.rollback()
                before = self._found(session, report, key)
                if before is None:
                    raise  # not caused by a report that was received before
                return before

    def _found(self, session: Session, report: Submission, key: str | None) -> Accepted | None:
        statement = select(_REPORTS).where(
            _REPORTS.c.affiliate_id == report.affiliate_id, _REPORTS.c.idempotency_key == key
        )
        row = session.execute(statement).first()
        if row is None:
            return None
        same = all(
            getattr(row, name) == getattr(report, name) for name in report.__slots__ if name != "submitted_at"
        )  # the default of submitted_at is the time at which the report was first received
        if not same:
            raise KeyReusedError(
                f"that key was used before, for report {row.id}, with other content", "Idempotency-Key"
            )
        return Accepted(row.id, row.priority, row.correlation_id, is_new=False)

    def _enqueue(self, accepted: Accepted, now: datetime) -> None:
        job = ReconciliationJob(accepted.report_id, accepted.priority, now, accepted.correlation_id)
        left = ""
        try:
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
            },
        )
