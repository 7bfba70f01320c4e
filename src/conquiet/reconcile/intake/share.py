"""How many attempts wait in the database, and how much of a queue they may take: an outage leaves room for other platforms."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import Connection, func, select

from conquiet.errors import ReconcileConfigError
from conquiet.local import PriorityDelayQueue
from conquiet.observe import RECONCILE_METRICS
from conquiet.reconcile.intake.backlog import Backlog
from conquiet.reconcile.job import JobQueue, ReconciliationJob
from conquiet.reconcile.models import AffiliateReport, ScheduledAttempt, table_of

__all__ = ["Share", "Waiting", "count_waiting"]

_REPORTS, _SCHEDULED = table_of(AffiliateReport), table_of(ScheduledAttempt)
_TAKEN = (
    select(_REPORTS.c.platform, func.count())
    .join(_SCHEDULED, _REPORTS.c.id == _SCHEDULED.c.report_id)
    .where(_SCHEDULED.c.enqueued_at.is_not(None))
    .group_by(_REPORTS.c.platform)
)
_WAITING = select(func.count(), func.min(_SCHEDULED.c.due_at)).where(_SCHEDULED.c.enqueued_at.is_(None))


class Waiting(NamedTuple):
    attempts: int  # in the database, for their time or for room in the queue
    overdue_seconds: float  # since the first of them was due; 0 if none is due


def count_waiting(connection: Connection, now: datetime) -> Waiting:
    """Count what waits in the database, and export it as metrics."""
    try:
        attempts, due_at = connection.execute(_WAITING).one()
    except ValueError:  # SQLite keeps any text as a time: the scheduler says which
        attempts, due_at = connection.execute(_WAITING.with_only_columns(func.count())).scalar_one(), None
    overdue = 0.0 if due_at is None else max(0.0, (now - due_at).total_seconds())
    RECONCILE_METRICS.waiting(attempts, overdue)
    return Waiting(attempts, overdue)


class Share:
    """`of_queue` and `of_platform` are shares of what the queue may hold; of a queue without a limit, there is no limit."""

    def __init__(self, queue: JobQueue, of_queue: float, of_platform: float) -> None:
        for name, share in (("queue_share", of_queue), ("platform_share", of_platform)):
            if type(share) not in (int, float) or not 0 < share <= 1:
                raise ReconcileConfigError(f"{name} must be a share above 0, at most 1, not {share!r}")
        self._memory = queue if isinstance(queue, PriorityDelayQueue) else None
        backlog = getattr(queue, "backlog", None)
        self._backlog = backlog if isinstance(backlog, Backlog) else None
        capacity = self._capacity()
        self._most = None if capacity is None else max(1, int(capacity * of_queue))
        self._most_of_platform = None if capacity is None else max(1, int(capacity * of_platform))
        self._handed: dict[tuple[int, int], str] = {}  # what the scheduler put into the queue in memory
        self._counts: Counter[str] = Counter()
        self._used = 0

    def count(self, connection: Connection) -> None:
        """Count what is in the queue now, by platform."""
        if self._most is None:
            return
        if self._memory is not None:
            self._count_in_memory(self._memory)
        elif self._backlog is not None:
            # What was handed over and is not yet made, by any process; some of it may have left the queue without a result.
            depth = self._backlog.depth() or 0
            taken = connection.execute(_TAKEN) if depth else ()
            self._counts = Counter({platform: min(count, depth) for platform, count in taken})
            self._used = min(self._counts.total(), depth)

    def _count_in_memory(self, queue: PriorityDelayQueue) -> None:
        if self._handed:
            jobs = (item.job for item in queue.items())
            there = {(j.affiliate_report_id, j.attempt) for j in jobs if isinstance(j, ReconciliationJob)}
            self._handed = {key: platform for key, platform in self._handed.items() if key in there}
        self._counts = Counter(self._handed.values())
        self._used = len(self._handed)

    def add(self, report_id: int, attempt: int, platform: str) -> None:
        if self._most is not None:
            self._counts[platform] += 1
            self._used += 1
            if self._memory is not None:
                self._handed[report_id, attempt] = platform

    def is_used_up(self) -> bool:
        return self._most is not None and self._used >= self._most

    def has_room_for(self, platform: str) -> bool:
        return self._most_of_platform is None or self._counts[platform] < self._most_of_platform

    def platforms_without_room(self) -> list[str]:
        return [platform for platform in self._counts if not self.has_room_for(platform)]

    def _capacity(self) -> int | None:
        if self._memory is not None:
            return self._memory.settings.max_in_memory
        return None if self._backlog is None else self._backlog.max_depth
