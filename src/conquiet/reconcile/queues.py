"""Adapts queues outside the process to the interface of the intake and the scheduler."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Protocol

from conquiet.errors import DuplicateJobError, ReconcileConfigError
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


class _Stream(Protocol):
    def enqueue(self, payload: dict[str, Any]) -> Any: ...


class JobStoreQueue:
    """A queue of a job store. An attempt is enqueued once: enqueueing it again changes nothing."""

    def __init__(
        self, store: _Store, queue: str = "reconciliation", *, priorities: Mapping[str, int] = _PRIORITIES
    ) -> None:
        self._store = store
        self._queue = queue
        self._priorities = priorities

    def enqueue(self, job: ReconciliationJob, priority: str = "normal", delay_seconds: float = 0.0) -> None:
        if priority not in self._priorities:
            raise ReconcileConfigError(
                f"there is no priority {priority!r}: use one of {', '.join(self._priorities)}"
            )
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
            pass  # enqueued now or earlier; if it has failed, it waits for a person like every failed job


class StreamQueue:
    """A `RedisStreamsQueue`. Streams have no priorities and no delays: use `RetryScheduler(look_ahead_seconds=0)`."""

    def __init__(self, stream: _Stream) -> None:
        self._stream = stream

    def enqueue(self, job: ReconciliationJob, priority: str = "normal", delay_seconds: float = 0.0) -> None:
        if delay_seconds > 0:
            raise ReconcileConfigError("a stream cannot delay: use RetryScheduler(…, look_ahead_seconds=0)")
        self._stream.enqueue(job.to_payload())
