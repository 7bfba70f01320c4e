"""The public data types: jobs, leases, attempts, results.

Jobs, leases and results are msgspec structs: immutable like frozen dataclasses, but ten times as fast to create, and a
worker creates several per job. `gc=False` is set where an object cannot be part of a reference cycle.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

import msgspec

from conquiet.jobs.retry import RetrySchedule

__all__ = [
    "Attempt",
    "Job",
    "JobPage",
    "JobState",
    "Lease",
    "Nack",
    "NewJob",
    "QueueStats",
    "SettleResult",
    "StoreCapabilities",
]


class JobState(StrEnum):
    """The four states. A job is always in exactly one."""

    READY = "Ready"
    IN_FLIGHT = "InFlight"
    FAILED = "Failed"
    SUCCEEDED = "Succeeded"


class Lease(msgspec.Struct, frozen=True, gc=False):
    """Temporary, exclusive ownership. Each claim makes a new `token` and increments `version`; both fence writes."""

    token: str
    version: int
    expires_at: datetime
    ttl: float
    worker: str
    begun: bool = True  # only a job that has begun is charged if this lease expires

    def __repr__(self) -> str:  # without the token: anyone who reads it in a log could settle the job
        return (
            f"Lease(version={self.version}, worker={self.worker!r}, expires_at={self.expires_at.isoformat()})"
        )

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [(name, getattr(self, name)) for name in ("version", "worker", "expires_at")]


class Attempt(msgspec.Struct, frozen=True, gc=False):
    """One delivery to a worker, and how it ended. `number` is its lease's version."""

    number: int
    worker: str
    started_at: datetime
    ended_at: datetime
    outcome: str  # "succeeded", "failed", "released", "lease expired"
    category: str | None = None
    error_type: str | None = None
    error_message: str | None = None
    traceback: str | None = None  # its last 8 KiB, without passwords


class Job(msgspec.Struct, frozen=True):
    """A snapshot of a job, taken when it was read."""

    id: str
    queue: str
    payload: dict[str, Any]
    priority: int
    state: JobState
    retries: int
    max_retries: int
    retry_at: datetime | None
    enqueued_at: datetime
    lease: Lease | None = None
    error: str | None = None
    attempts: tuple[Attempt, ...] = ()
    correlation_id: str | None = None
    lease_expiries: int = 0

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:  # a payload may hold secrets, and reprs end up in logs
        return f"Job({self.id!r}, queue={self.queue!r}, {self.state.value})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [(name, getattr(self, name)) for name in ("id", "queue", "state")]

    def plain(self) -> dict[str, Any]:
        """Return this job as JSON types, for another process, which rebuilds it with `of_plain`."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain

    @staticmethod
    def of_plain(plain: dict[str, Any]) -> Job:
        return msgspec.convert(plain, Job)

    def leased_until(self, expires_at: datetime) -> Job:
        """Return this job with its lease extended by a heartbeat."""
        assert self.lease is not None
        lease = msgspec.structs.replace(self.lease, expires_at=expires_at)
        return msgspec.structs.replace(self, lease=lease)


class JobPage(list[Job]):
    """A list of jobs. `next` is what `after=` of the next page takes, or None if this page is the last."""

    def __init__(self, jobs: Iterable[Job], next: int | None) -> None:
        super().__init__(jobs)
        self.next = next


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job to enqueue, with options beside its payload. It is due after `delay` seconds, or `at` a time."""

    payload: Mapping[str, Any] = field(repr=False)
    id: str | None = None
    priority: int = 5
    delay: float = 0.0
    max_retries: int | None = None
    correlation_id: str | None = None
    at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Nack:
    """A job whose handler failed, for `nack_many`."""

    job: Job
    error: BaseException | str | None = None
    retryable: bool = True
    category: str | None = None
    schedule: RetrySchedule | None = None  # gives the delay before the retry; None: the store's schedule


class SettleResult(msgspec.Struct, frozen=True):
    """The result for one job of a batch. `error` is the exception that the call for a single job would have raised."""

    job_id: str
    ok: bool
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class QueueStats:
    """The number of jobs of one queue by state.

    `delayed` jobs are Ready but not yet due; `expired` jobs are InFlight with a lapsed lease.
    """

    queue: str
    ready: int = 0
    delayed: int = 0
    in_flight: int = 0
    expired: int = 0
    failed: int = 0
    succeeded: int = 0


@dataclass(frozen=True, slots=True)
class StoreCapabilities:
    """How a store differs from others. Stores do not differ in anything else."""

    name: str
    durable: bool  # survives the process
    own_clock: bool  # leases depend on the server's time, not on an injected clock
    joins_transactions: bool  # accepts `connection=`
    shared: bool = field(default=True)  # several processes may use it at the same time
