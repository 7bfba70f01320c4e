"""What a store's back end does: rows in, rows out, each method one atomic step, as a flow.

Everything that stores have in common (checks, JSON, retry decisions, errors per job) is in `operations.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple, Protocol

from conquiet.flow import Flow, Signal
from conquiet.jobs.model import JobState, QueueStats, StoreCapabilities

__all__ = ["Backend", "Claim", "Inserted", "JobRow", "NewRow", "Settlement"]


class NewRow(NamedTuple):
    id: str
    payload: str
    priority: int
    delay: float
    max_retries: int
    correlation_id: str | None


class Inserted(NamedTuple):
    at: float  # by the store's clock
    ids: Collection[str]


class JobRow(NamedTuple):
    """A job as stored; times are seconds since 1970."""

    id: str
    queue: str
    payload: str | bytes
    priority: int
    state: str
    retries: int
    max_retries: int
    retry_at: float | None
    enqueued_at: float
    correlation_id: str | None
    lease_token: str | None
    lease_version: int
    lease_expires_at: float | None
    lease_ttl: float | None
    lease_worker: str | None
    lease_started_at: float | None
    lease_expiries: int
    error: str | None
    finished_at: float | None
    attempts: str  # JSON array, see `rows.py`; without the last attempt of a job that Succeeded


class Claim(NamedTuple):
    queues: tuple[str, ...]
    limit: int
    ttl: float
    worker: str
    max_lease_expiries: int


class Settlement(NamedTuple):
    """The end of a lease: `state` is where the job goes; `delay` counts from the store's now."""

    job_id: str
    token: str
    state: JobState
    outcome: str
    retry: bool = False
    delay: float | None = None
    error: str | None = None
    error_type: str | None = None
    category: str | None = None


class Backend(Protocol):
    capabilities: StoreCapabilities

    def open(self, migrate: str) -> Flow[None]:
        """Connect and see to the schema."""

    def migrate(self, target: int | None) -> Flow[list[str]]:
        """Bring the schema to `target` (None: the newest), up or down; the names of the steps taken."""

    def plan(self, target: int | None) -> Flow[list[tuple[str, str]]]:
        """The steps that `migrate` would take now, as (name, SQL). Nothing is changed or created."""

    def insert(self, queue: str, rows: Sequence[NewRow], skip: bool, connection: Any) -> Flow[Inserted]:
        """Add rows. With `skip` ids that exist are left out, else they raise DuplicateJobError and none is added."""

    def claim(self, claim: Claim) -> Flow[tuple[list[JobRow], bool]]:
        """Lease the next jobs; and whether jobs were failed on the way, so that more may be claimable.

        DamagedRowError, with nothing leased, if the statement fails because of what stands in a row.
        """

    def set_aside(self, job_id: Any, token: str, reason: str) -> Flow[None]:
        """Fail a leased job whose row cannot be read; nothing of the row but its id and token is looked at."""

    def set_aside_next(self, queues: Sequence[str], reason: str) -> Flow[bool]:
        """Fail the job that a claim of one would lease next; False if there is none."""

    def settle(self, settlements: Sequence[Settlement], connection: Any) -> Flow[set[str]]:
        """End leases; the tokens whose lease was current."""

    def heartbeat(self, leases: Sequence[tuple[str, str]]) -> Flow[dict[str, float]]:
        """Extend leases, given as (job id, token); the new expiry of each token whose lease was current."""

    def get(self, job_id: str) -> Flow[JobRow | None]: ...

    def select(
        self, state: JobState | None, queue: str | None, limit: int, offset: int
    ) -> Flow[list[JobRow]]: ...

    def stats(self, queue: str | None) -> Flow[list[QueueStats]]: ...

    def retry(self, job_id: str) -> Flow[bool]:
        """Failed to Ready with its retries given back; False if it is not Failed."""

    def discard(self, job_id: str) -> Flow[bool]:
        """Remove it if it is Ready or Failed; False if not."""

    def prune(self, older_than: float) -> Flow[int]:
        """Remove finished jobs that ended so many seconds ago; how many."""

    def next_due(self, queues: Sequence[str]) -> Flow[float | None]:
        """Seconds until a job of these queues comes due: 0 if one is now, though somebody may have it locked. None if
        all are finished."""

    def wait_for_work(self, queues: Sequence[str], seconds: float, stop: Signal) -> Flow[None]:
        """Return when there may be work, after `seconds`, or when `stop` is set."""

    def begin(self) -> Flow[Any]:
        """A connection in a transaction of its own, for a handler."""

    def commit(self, connection: Any) -> Flow[None]:
        """Commit what `begin` gave; StoreOutcomeUnknownError if the answer did not come."""

    def roll_back(self, connection: Any) -> Flow[None]: ...

    def awaiting(self) -> Backend:
        """The same store for asyncio: itself, or a back end of its own on the same database."""

    def close(self) -> Flow[None]: ...
