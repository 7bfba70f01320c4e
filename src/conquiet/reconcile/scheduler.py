"""Moves scheduled attempts, and attempts left over from a crash, from the database to a queue.

The table `scheduled_attempts` is an outbox. `RetryScheduler` takes rows that are free and nearly due, enqueues each with
the rest of its delay, and commits. If it dies before the commit, the rows are taken again; an attempt that is delivered
twice is applied once.
If it dies after the commit, an in-process queue loses the attempts, and `resume` schedules them again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, CursorResult, Integer, and_, bindparam, func, literal, null, select, tuple_
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from conquiet.checks import checked_int, checked_seconds
from conquiet.clock import SYSTEM_CLOCK, Clock, Parker, utc
from conquiet.errors import ConfigError, ConquietError, QueueFullError, ReconcileConfigError, redact
from conquiet.local import PriorityDelayQueue
from conquiet.observe import SafeLogger
from conquiet.reconcile.database import insert_or_ignore, patient
from conquiet.reconcile.intake.share import Share, count_waiting
from conquiet.reconcile.job import JobQueue, ReconciliationJob
from conquiet.reconcile.models import AffiliateReport, ScheduledAttempt, UtcDateTime, table_of

__all__ = ["RetryScheduler", "hand_back", "resume", "schedule_attempt"]

_DEFAULT_PRIORITY = "normal"
_HELD_BACK_SECONDS = 1.0  # between turns while attempts that are due find no room
_MOST_REMEMBERED = 10_000

_log = SafeLogger("conquiet.reconcile")
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
        with patient(connection):
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


def hand_back(
    session_factory: Callable[[], Session], jobs: Collection[ReconciliationJob], now: datetime
) -> None:
    """Schedule attempts that an in-process queue will not make: another process, or the next start, makes them."""
    rows = [
        {"of_report": job.affiliate_report_id, "number": job.attempt, "due": job.scheduled_at or now}
        for job in jobs
    ]
    with session_factory() as session:
        connection = session.connection()
        connection.execute(_hand_back(connection.dialect.name), rows)
        session.commit()


class RetryScheduler:
    """Enqueues scheduled attempts, each once, in the order in which they are due.

    Attempts that are due later than in `look_ahead_seconds` stay in the database; None means that all are enqueued, 0 is for
    queues without delays. Of a queue with a limit, they take at most `queue_share`, and those of one platform at most
    `platform_share`: the outage of a platform must not close the intake for the others. Several processes may call
    `run_once` at the same time: each attempt is taken by one of them.
    """

    def __init__(
        self,
        session_factory: Callable[[], Session],
        queue: JobQueue,
        *,
        look_ahead_seconds: float | None = 60.0,
        queue_share: float = 0.5,
        platform_share: float = 0.25,
        overdue_seconds: float = 3_600.0,
        batch_size: int = 500,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._session_factory = session_factory
        self._queue = queue
        self._look_ahead = None
        if look_ahead_seconds is not None:
            ahead = checked_seconds("look_ahead_seconds", look_ahead_seconds, error=ReconcileConfigError)
            self._look_ahead = timedelta(seconds=ahead)
        self._share = Share(queue, queue_share, platform_share)
        self._overdue_seconds = checked_seconds(
            "overdue_seconds", overdue_seconds, above_zero=True, error=ReconcileConfigError
        )
        self._batch_size = checked_int("batch_size", batch_size, 1, error=ReconcileConfigError)
        self._clock = clock
        self._parker = Parker()
        self._stopped = threading.Event()
        self._is_held_back = False
        self._is_failing = False
        self._passed_over: set[str] = set()

    def run_once(self, now: datetime | None = None) -> int:
        """Enqueue the waiting attempts, or as many as the queue accepts, and return their number.

        An attempt that the queue refuses is passed over. If there is nothing else, the refusal is raised.
        """
        turn = _Turn(now or utc(self._clock.time()))
        with self._session_factory() as session:
            self._share.count(session.connection())
        self._is_held_back = False
        while not turn.is_over:
            self._batch(turn)
        if turn.refusal is not None and not turn.enqueued:
            raise turn.refusal
        return turn.enqueued

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
                with self._session_factory() as session:
                    count_waiting(session.connection(), utc(self._clock.time()))
                self._is_failing = False
            except Exception as error:  # noqa: BLE001 - the next turn may succeed; the scheduler must not end
                # Once in each outage, which may last for hours.
                was_failing, self._is_failing = self._is_failing, True
                _log.log(
                    logging.DEBUG if was_failing else logging.ERROR,
                    "scheduled attempts could not be enqueued now, and are tried again: %s: %s",
                    type(error).__name__,
                    redact(str(error)),
                    exc_info=not isinstance(error, ConquietError),
                    extra={"event": "scheduler_failed"},
                )
            wait = min(interval_seconds, _HELD_BACK_SECONDS) if self._is_held_back else interval_seconds
            self._clock.wait(self._parker, wait)

    def stop(self) -> None:
        """End `run`. Can be called from any thread or signal handler."""
        self._stopped.set()
        self._parker.wake()

    def _batch(self, turn: _Turn) -> None:
        """Enqueue one batch."""
        with self._session_factory() as session:
            connection = session.connection()
            rows, damaged = _read(connection.execute(self._waiting(connection, turn)))
            turn.is_over = len(rows) + damaged < self._batch_size or not rows
            if rows:
                turn.last = rows[-1].due_at, rows[-1].report_id, rows[-1].attempt
            try:
                for row in rows:
                    if self._is_over(turn) or not self._share.has_room_for(row.platform):
                        self._is_held_back = True
                        continue
                    if self._hand_over(connection, row, turn):
                        turn.enqueued += 1
                        self._share.add(row.report_id, row.attempt, row.platform)
            except QueueFullError:
                turn.is_over = self._is_held_back = True
                _log.warning(
                    "the queue is full: scheduled attempts wait for the next turn",
                    extra={"event": "scheduler_held_back"},
                )
            finally:
                if turn.to_take:
                    connection.execute(_TAKE, turn.to_take)
                    turn.to_take = []
                session.commit()  # enqueued attempts stay taken even if the next one failed

    def _is_over(self, turn: _Turn) -> bool:
        turn.is_over = turn.is_over or self._share.is_used_up()
        return self._share.is_used_up()

    def _waiting(self, connection: Connection, turn: _Turn) -> Any:
        order = _SCHEDULED.c.due_at, _SCHEDULED.c.report_id, _SCHEDULED.c.attempt
        waiting = (
            select(_SCHEDULED, _REPORTS.c.priority, _REPORTS.c.correlation_id, _REPORTS.c.platform)
            .join(_REPORTS, _REPORTS.c.id == _SCHEDULED.c.report_id)
            .where(_SCHEDULED.c.enqueued_at.is_(None))
            .order_by(*order)
            .limit(self._batch_size)
        )
        if self._look_ahead is not None:
            waiting = waiting.where(_SCHEDULED.c.due_at <= turn.now + self._look_ahead)
        if turn.last is not None:  # what was passed over is not read again in this turn
            values = (literal(value, column.type) for value, column in zip(turn.last, order, strict=True))
            waiting = waiting.where(tuple_(*order) > tuple_(*values))
        full = self._share.platforms_without_room()
        if full:
            waiting = waiting.where(_REPORTS.c.platform.not_in(full))
        if connection.dialect.name == "postgresql":  # so that two schedulers share the work
            waiting = waiting.with_for_update(of=_SCHEDULED, skip_locked=True)
        return waiting

    def _hand_over(self, connection: Connection, row: Any, turn: _Turn) -> bool:
        key = {"of_report": row.report_id, "number": row.attempt}
        # Updating the row takes it. On SQLite another process may have taken it since it was read.
        is_taken = not self._takes_last(connection)
        if is_taken and connection.execute(_TAKE, key | {"now": turn.now}).rowcount != 1:
            return False
        job = ReconciliationJob(row.report_id, row.priority, row.due_at, row.correlation_id, row.attempt)
        remaining = max(0.0, (row.due_at - turn.now).total_seconds())
        try:
            self._enqueue(job, delay_seconds=remaining)
        except BaseException as error:
            if is_taken:
                connection.execute(_GIVE_BACK, key)
            if not isinstance(error, ConfigError):
                raise
            self._pass_over(job, error, turn)
            return False
        if not is_taken:
            turn.to_take.append(key | {"now": turn.now})
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

    def _takes_last(self, connection: Connection) -> bool:
        """Whether a row is taken after its attempt was enqueued.

        The queue may be a job store in the same SQLite file, which would wait for the lock that taking the row needs. If the
        process dies in between, the attempt is enqueued twice: a job store notices that, and it is applied once in any case.
        """
        return connection.dialect.name == "sqlite" and not isinstance(self._queue, PriorityDelayQueue)

    def _enqueue(self, job: ReconciliationJob, *, delay_seconds: float) -> None:
        try:
            self._queue.enqueue(job, priority=job.priority, delay_seconds=delay_seconds)
        except ConfigError as error:
            if job.priority == _DEFAULT_PRIORITY:
                raise
            # Its label was that of other settings. It must not wait for ever because of that.
            job = replace(job, priority=_DEFAULT_PRIORITY)
            self._queue.enqueue(job, priority=job.priority, delay_seconds=delay_seconds)
            _log.warning(
                "report %s, attempt %s: enqueued with priority %s: %s",
                job.affiliate_report_id,
                job.attempt,
                job.priority,
                redact(str(error)),
                extra={"event": "priority_replaced", "report_id": job.affiliate_report_id},
            )

    def _pass_over(self, job: ReconciliationJob, error: ConfigError, turn: _Turn) -> None:
        turn.refusal = turn.refusal or error
        if job.id in self._passed_over:
            return  # logged before
        if len(self._passed_over) >= _MOST_REMEMBERED:
            self._passed_over.clear()
        self._passed_over.add(job.id)
        _log.error(
            "report %s, attempt %s cannot be enqueued, and is tried again in each turn (logged once): %s",
            job.affiliate_report_id,
            job.attempt,
            redact(str(error)),
            extra={"event": "attempt_refused", "report_id": job.affiliate_report_id, "attempt": job.attempt},
        )


def _read(result: CursorResult[Any]) -> tuple[list[Any], int]:
    """Return the rows, and the number of those that cannot be read: SQLite keeps any text as a time."""
    rows: list[Any] = []
    damaged = 0
    while True:
        try:
            row = result.fetchone()
        except ValueError as error:
            damaged += 1
            _log.error(
                "a scheduled attempt cannot be read, and is passed over: %s. Correct its due_at in scheduled_attempts",
                redact(str(error)),
                extra={"event": "attempt_damaged"},
            )
            continue
        if row is None:
            return rows, damaged
        rows.append(row)


@dataclass(slots=True)
class _Turn:
    """What happens in one `run_once`."""

    now: datetime
    enqueued: int = 0
    is_over: bool = False
    last: tuple[datetime, int, int] | None = None  # the last row that was read
    refusal: ConfigError | None = None
    to_take: list[dict[str, Any]] = field(default_factory=list)  # enqueued, but not yet recorded as such


_KEY = and_(_SCHEDULED.c.report_id == bindparam("of_report"), _SCHEDULED.c.attempt == bindparam("number"))
_TAKE = (
    _SCHEDULED.update().where(_KEY, _SCHEDULED.c.enqueued_at.is_(None)).values(enqueued_at=bindparam("now"))
)
_GIVE_BACK = _SCHEDULED.update().where(_KEY).values(enqueued_at=null())


def _hand_back(dialect: str) -> Any:
    unfinished = select(
        _REPORTS.c.id, bindparam("number", type_=Integer()), bindparam("due", type_=UtcDateTime()), null()
    ).where(_REPORTS.c.id == bindparam("of_report"), _REPORTS.c.finished_at.is_(None))
    insert = postgresql.insert if dialect == "postgresql" else sqlite.insert
    return (
        insert(_SCHEDULED)
        .from_select(["report_id", "attempt", "due_at", "enqueued_at"], unfinished)
        .on_conflict_do_update(index_elements=["report_id", "attempt"], set_={"enqueued_at": null()})
    )


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
