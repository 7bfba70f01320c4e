"""Moves scheduled attempts, and attempts left over from a crash, from the database to a queue.

The table `scheduled_attempts` is an outbox. `RetryScheduler` takes free rows, enqueues each with the rest of its delay,
and commits. If it dies before the commit, the rows are taken again; an attempt that is delivered twice is applied once.
If it dies after the commit, an in-process queue loses the attempts, and `resume` schedules them again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, and_, bindparam, func, literal, null, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from conquiet.clock import SYSTEM_CLOCK, Clock, Parker, utc
from conquiet.errors import ConquietError, QueueFullError, redact
from conquiet.reconcile.database import insert_or_ignore
from conquiet.reconcile.job import JobQueue, ReconciliationJob
from conquiet.reconcile.models import AffiliateReport, ScheduledAttempt, UtcDateTime, table_of

__all__ = ["RetryScheduler", "resume", "schedule_attempt"]

_log = logging.getLogger("conquiet.reconcile")
_REPORTS, _SCHEDULED = table_of(AffiliateReport), table_of(ScheduledAttempt)


def resume(
    session_factory: Callable[[], Session], now: datetime | None = None, *, overdue_seconds: float = 0.0
) -> int:
    """Schedule every report that has neither a final verdict nor a waiting attempt; return their number. Call on start.

    These reports were stored but never enqueued, or were in the memory of a process that has ended. A retry keeps its
    due time. Attempts in the queues of other running processes are also scheduled, and still applied once.

    With `overdue_seconds`, for periodic checks, only reports whose next attempt is overdue by that much are scheduled.
    """
    with session_factory() as session:
        connection = session.connection()
        statement = _forgotten(connection, now or utc(SYSTEM_CLOCK.time()), overdue_seconds)
        count = connection.execute(statement).rowcount
        session.commit()
    if count:
        _log.warning(
            "%d unfinished reports: scheduled again",
            count,
            extra={"event": "reports_resumed", "count": count},
        )
    return count


def schedule_attempt(session: Session, report_id: int, attempt: int, due_at: datetime) -> None:
    """Schedule an attempt; nothing changes if it is scheduled already."""
    values = {"report_id": report_id, "attempt": attempt, "due_at": due_at, "enqueued_at": None}
    insert_or_ignore(session.connection(), _SCHEDULED, values)


class RetryScheduler:
    """Enqueues scheduled attempts, each once, in the order in which they are due.

    With `look_ahead_seconds`, attempts that are due later stay in the database; 0 is for queues without delays. Several
    processes may call `run_once` at the same time: each attempt is taken by one of them.
    """

    def __init__(
        self,
        session_factory: Callable[[], Session],
        queue: JobQueue,
        *,
        look_ahead_seconds: float | None = None,
        overdue_seconds: float = 3_600.0,
        batch_size: int = 500,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._session_factory = session_factory
        self._queue = queue
        self._look_ahead = None if look_ahead_seconds is None else timedelta(seconds=look_ahead_seconds)
        self._overdue_seconds = overdue_seconds
        self._batch_size = batch_size
        self._clock = clock
        self._parker = Parker()
        self._stopped = threading.Event()

    def run_once(self, now: datetime | None = None) -> int:
        """Enqueue all waiting attempts, or as many as the queue accepts, and return their number."""
        now = now or utc(self._clock.time())
        total = 0
        while True:
            enqueued, is_over = self._batch(now)
            total += enqueued
            if is_over:
                return total

    def run(self, interval_seconds: float = 5.0) -> None:
        """Call `run_once` repeatedly until `stop`. If the database is unavailable, the next turn tries again.

        Periodically it looks for reports that are long overdue: a worker may have failed to record an attempt.
        """
        looked_at = self._clock.monotonic()
        while not self._stopped.is_set():
            try:
                if self._clock.monotonic() - looked_at >= self._overdue_seconds:
                    looked_at = self._clock.monotonic()
                    now = utc(self._clock.time())
                    resume(self._session_factory, now, overdue_seconds=self._overdue_seconds)
                self.run_once()
            except Exception as error:  # noqa: BLE001 - the next turn may succeed; the scheduler must not end
                _log.error(
                    "scheduled attempts could not be enqueued now: %s: %s",
                    type(error).__name__,
                    redact(str(error)),
                    exc_info=not isinstance(error, ConquietError),
                    extra={"event": "scheduler_failed"},
                )
            self._clock.wait(self._parker, interval_seconds)

    def stop(self) -> None:
        """End `run`. Can be called from any thread or signal handler."""
        self._stopped.set()
        self._parker.wake()

    def _batch(self, now: datetime) -> tuple[int, bool]:
        """Enqueue one batch. Return the number of attempts, and whether none is left for now."""
        enqueued = 0
        with self._session_factory() as session:
            connection = session.connection()
            rows = connection.execute(self._waiting(connection, now)).all()
            is_over = len(rows) < self._batch_size
            try:
                for row in rows:
                    enqueued += self._hand_over(connection, row, now)
            except QueueFullError:
                is_over = True
                _log.warning(
                    "the queue is full: scheduled attempts wait for the next turn",
                    extra={"event": "scheduler_held_back"},
                )
            finally:
                session.commit()  # enqueued attempts stay taken even if the next one failed
        return enqueued, is_over

    def _waiting(self, connection: Connection, now: datetime) -> Any:
        waiting = (
            select(_SCHEDULED, _REPORTS.c.priority, _REPORTS.c.correlation_id)
            .join(_REPORTS, _REPORTS.c.id == _SCHEDULED.c.report_id)
            .where(_SCHEDULED.c.enqueued_at.is_(None))
            .order_by(_SCHEDULED.c.due_at, _SCHEDULED.c.report_id)
            .limit(self._batch_size)
        )
        if self._look_ahead is not None:
            waiting = waiting.where(_SCHEDULED.c.due_at <= now + self._look_ahead)
        if connection.dialect.name == "postgresql":  # so that two schedulers share the work
            waiting = waiting.with_for_update(of=_SCHEDULED, skip_locked=True)
        return waiting

    def _hand_over(self, connection: Connection, row: Any, now: datetime) -> bool:
        # Updating the row takes it. On SQLite another process may have taken it since it was read.
        key = {"of_report": row.report_id, "number": row.attempt}
        if connection.execute(_TAKE, key | {"now": now}).rowcount != 1:
            return False
        job = ReconciliationJob(row.report_id, row.priority, row.due_at, row.correlation_id, row.attempt)
        remaining = max(0.0, (row.due_at - now).total_seconds())
        try:
            self._queue.enqueue(job, priority=row.priority, delay_seconds=remaining)
        except BaseException:
            connection.execute(_GIVE_BACK, key)
            raise
        _log.info(
            "report %s, attempt %s: enqueued, due in %.0f s",
            row.report_id,
            row.attempt,
            remaining,
            extra={
                "event": "attempt_enqueued",
                "report_id": row.report_id,
                "attempt": row.attempt,
                "correlation_id": row.correlation_id,
            },
        )
        return True


_KEY = and_(_SCHEDULED.c.report_id == bindparam("of_report"), _SCHEDULED.c.attempt == bindparam("number"))
_TAKE = (
    _SCHEDULED.update().where(_KEY, _SCHEDULED.c.enqueued_at.is_(None)).values(enqueued_at=bindparam("now"))
)
_GIVE_BACK = _SCHEDULED.update().where(_KEY).values(enqueued_at=null())


def _forgotten(connection: Connection, now: datetime, overdue_seconds: float) -> Any:
    """Insert the next attempt of every unfinished report as waiting; a taken one becomes waiting again."""
    waits = (
        select(_SCHEDULED.c.report_id)
        .where(
            _SCHEDULED.c.report_id == _REPORTS.c.id,
            _SCHEDULED.c.attempt == _REPORTS.c.attempts + 1,
            _SCHEDULED.c.enqueued_at.is_(None),
        )
        .exists()
    )
    forgotten = select(
        _REPORTS.c.id,
        _REPORTS.c.attempts + 1,
        func.coalesce(_REPORTS.c.scheduled_retry_at, literal(now, UtcDateTime())),
        null(),
    ).where(_REPORTS.c.finished_at.is_(None), ~waits)
    if overdue_seconds:
        due_at = func.coalesce(_REPORTS.c.scheduled_retry_at, _REPORTS.c.received_at)
        forgotten = forgotten.where(
            due_at <= literal(now - timedelta(seconds=overdue_seconds), UtcDateTime())
        )
    insert = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    return (
        insert(_SCHEDULED)
        .from_select(["report_id", "attempt", "due_at", "enqueued_at"], forgotten)
        .on_conflict_do_update(index_elements=["report_id", "attempt"], set_={"enqueued_at": null()})
        .execution_options(preserve_rowcount=True)
    )
