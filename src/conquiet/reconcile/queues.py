"""Adapts queues outside the process to the interface of the intake and the scheduler."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Protocol

from conquiet.checks import checked_seconds
from conquiet.clock import SYSTEM_CLOCK, Clock
from conquiet.errors import DuplicateJobError, ReconcileConfigError
from conquiet.reconcile.intake.backlog import MAX_DEPTH, Backlog
from conquiet.reconcile.job import ReconciliationJob

__all__ = ["JobStoreQueue", "StreamQueue"]

_PRIORITIES = MappingProxyType({"high": 0, "normal": 5, "low": 10})


class _Store(Protocol):
    def enqueue(
        self,
        queue: str,
        payload: Mapping[str, Any],
        *,
        id: str | None = ...,
        priority: int = ...,
        delay: float = ...,
        correlation_id: str | None = ...,
    ) -> Any: ...

    def backlog(self, queue: str, limit: int) -> int: ...


class _Stream(Protocol):
    def enqueue(self, payload: dict[str, Any]) -> Any: ...

    def backlog_stats(self) -> Any: ...


class JobStoreQueue:
    """A queue of a job store. An attempt is enqueued once: enqueueing it again changes nothing.

    If `max_depth` jobs are due and not begun, the intake refuses further reports, and attempts wait in the database. Jobs
    with a delay do not count before they are due. None means no limit.
    """

    def __init__(
        self,
        store: _Store,
        queue: str = "reconciliation",
        *,
        priorities: Mapping[str, int] = _PRIORITIES,
        max_depth: int | None = MAX_DEPTH,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._store = store
        self._queue = queue
        self._priorities = priorities
        self.backlog = Backlog(f"the queue {queue!r}", self._count, max_depth, clock)

    def enqueue(self, job: ReconciliationJob, priority: str = "normal", delay_seconds: float = 0.0) -> None:
        if priority not in self._priorities:
            raise ReconcileConfigError(
                f"there is no priority {priority!r}: use one of {', '.join(self._priorities)}"
            )
        is_delayed = _is_delayed(delay_seconds)
        if not is_delayed:
            self.backlog.check()
        try:
            self._store.enqueue(
                self._queue,
                job.to_payload(),
                id=job.id,
                priority=self._priorities[priority],
                delay=delay_seconds,
                correlation_id=job.correlation_id,
            )
        except DuplicateJobError:
            return  # enqueued now or earlier; if it has failed, it waits for a person like every failed job
        if not is_delayed:
            self.backlog.added()

    def _count(self) -> int:
        """Not further than the limit: the rest changes nothing, and may be millions."""
        return self._store.backlog(self._queue, self.backlog.max_depth or MAX_DEPTH)


class StreamQueue:
    """A `RedisStreamsQueue`. Streams have no priorities and no delays: use `RetryScheduler(look_ahead_seconds=0)`.

    If `max_depth` entries are not yet delivered to the group or not yet acknowledged, the intake refuses further reports,
    and attempts wait in the database. None means no limit.
    """

    def __init__(
        self, stream: _Stream, *, max_depth: int | None = MAX_DEPTH, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._stream = stream
        self.backlog = Backlog("the stream", self._count, max_depth, clock)

    def enqueue(self, job: ReconciliationJob, priority: str = "normal", delay_seconds: float = 0.0) -> None:
        if _is_delayed(delay_seconds):
            raise ReconcileConfigError("a stream cannot delay: use RetryScheduler(…, look_ahead_seconds=0)")
        self.backlog.check()
        self._stream.enqueue(job.to_payload())
        self.backlog.added()

    def _count(self) -> int | None:
        stats = self._stream.backlog_stats()
        return None if stats.lag is None else stats.lag + stats.pending


def _is_delayed(delay_seconds: object) -> bool:
    return checked_seconds("delay_seconds", delay_seconds, or_negative=True, error=ReconcileConfigError) > 0
