"""The job that travels through a queue: which report, which attempt, its priority and its correlation id."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Protocol

from conquiet.errors import PayloadError

__all__ = ["JOB_ID", "JobQueue", "ReconciliationJob"]

JOB_ID: Final = "report-%d-attempt-%d"
"""The id of the job for an attempt, as a printf format for Python and Spark SQL. A job that is enqueued twice has
the same id both times."""


@dataclass(frozen=True, slots=True)
class ReconciliationJob:
    """One attempt at one report.

    `attempt` makes delivery idempotent: a job delivered twice names an attempt that is already recorded.
    """

    affiliate_report_id: int
    priority: str = "normal"
    scheduled_at: datetime | None = None
    correlation_id: str | None = None
    attempt: int = 1

    def __post_init__(self) -> None:
        if type(self.affiliate_report_id) is not int or type(self.attempt) is not int or self.attempt < 1:
            raise PayloadError(
                "a reconciliation job needs an integer affiliate_report_id, and attempt from 1 if it has one"
            )

    @property
    def id(self) -> str:
        """The id of the job in a job store."""
        return JOB_ID % (self.affiliate_report_id, self.attempt)

    @property
    def log_fields(self) -> dict[str, Any]:
        """How a worker's log record and `LAST_EXCEPTIONS` identify this job if it fails."""
        return {"report_id": self.affiliate_report_id}

    def to_payload(self) -> dict[str, Any]:
        """Return the job as JSON values, for queues outside the process."""
        return {
            "affiliate_report_id": self.affiliate_report_id,
            "priority": self.priority,
            "scheduled_at": None if self.scheduled_at is None else self.scheduled_at.isoformat(),
            "correlation_id": self.correlation_id,
            "attempt": self.attempt,
        }

    @classmethod
    def from_payload(cls, payload: dict[str, Any]) -> ReconciliationJob:
        report_id, attempt = payload.get("affiliate_report_id"), payload.get("attempt", 1)
        scheduled_at, priority = payload.get("scheduled_at"), payload.get("priority", "normal")
        try:
            return cls(
                affiliate_report_id=report_id,  # type: ignore[arg-type]  # checked there
                priority=priority,
                scheduled_at=None if scheduled_at is None else datetime.fromisoformat(scheduled_at),
                correlation_id=payload.get("correlation_id"),
                attempt=attempt,
            )
        except (TypeError, ValueError) as error:
            raise PayloadError(
                f"a reconciliation job's scheduled_at is not an ISO 8601 time: {error}"
            ) from error


class JobQueue(Protocol):
    """The part of a queue that the intake and the scheduler need; `PriorityDelayQueue` implements it.

    If it also has a `backlog`, as `JobStoreQueue` and `StreamQueue` have, the intake refuses reports while that is full.
    """

    def enqueue(self, job: Any, priority: str = ..., delay_seconds: float = ...) -> Any: ...
