"""The interface of a back end: rows in, rows out. Each method is one atomic step, as a flow.

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
    """A job as it is stored. Times are seconds since 1970."""

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
    attempts: str  # JSON array, see `rows.py`; without the last attempt of a Succeeded job


class Claim(NamedTuple):
    queues: tuple[str, ...]
    limit: int
    ttl: float
    worker: str
    max_lease_expiries: int


class Settlement(NamedTuple):
    """The end of a lease. `state` is the new state of the job; `delay` counts from the store's current time."""

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
        """Connect, and check or create the schema."""

    def migrate(self, target: int | None) -> Flow[list[str]]:
        """Migrate the schema to version `target` (None: the newest), up or down. Return the names of the steps."""

    def plan(self, target: int | None) -> Flow[list[tuple[str, str]]]:
        """Return the steps that `migrate` would take now, as (name, SQL). Nothing is changed or created."""

    def insert(self, queue: str, rows: Sequence[NewRow], skip: bool, connection: Any) -> Flow[Inserted]:
        """Add rows. With `skip`, rows whose ids exist are left out; otherwise raise DuplicateJobError and add none."""

    def claim(self, claim: Claim) -> Flow[tuple[list[JobRow], bool]]:
        """Lease the next jobs. Return them and whether this claim marked jobs as Failed, so that more may be claimable.

        Raise DamagedRowError, with nothing leased, if the statement fails because of a value in a row.
        """

    def set_aside(self, job_id: Any, token: str, reason: str) -> Flow[None]:
        """Fail a leased job whose row cannot be read. Only the id and the token of the row are used."""

    def set_aside_next(self, queues: Sequence[str], reason: str) -> Flow[bool]:
        """Fail the job that a claim would lease next. Return False if there is none."""

    def settle(self, settlements: Sequence[Settlement], connection: Any) -> Flow[set[str]]:
        """End leases. Return the tokens whose lease was current."""

    def heartbeat(self, leases: Sequence[tuple[str, str]]) -> Flow[dict[str, float]]:
        """Extend leases, given as (job id, token). Return the new expiry by token, for leases that were current."""

    def get(self, job_id: str) -> Flow[JobRow | None]: ...

    def select(
        self, state: JobState | None, queue: str | None, limit: int, offset: int
    ) -> Flow[list[JobRow]]: ...

    def stats(self, queue: str | None) -> Flow[list[QueueStats]]: ...

    def retry(self, job_id: str) -> Flow[bool]:
        """Make a Failed job Ready, with all its retries. Return False if it is not Failed."""

    def discard(self, job_id: str) -> Flow[bool]:
        """Remove the job if it is Ready or Failed. Return False if it is not."""

    def prune(self, older_than: float) -> Flow[int]:
        """Remove jobs that finished at least `older_than` seconds ago. Return how many."""

    def next_due(self, queues: Sequence[str]) -> Flow[float | None]:
        """Return the seconds until a job of these queues is due, 0 if one is due now (it may be locked). Return None if
        all jobs are finished."""

    def wait_for_work(self, queues: Sequence[str], seconds: float, stop: Signal) -> Flow[None]:
        """Return when there may be work, after `seconds`, or when `stop` is set."""

    def begin(self) -> Flow[Any]:
        """Return a connection in a new transaction, for a handler."""

    def commit(self, connection: Any) -> Flow[None]:
        """Commit the transaction of `begin`. Raise StoreOutcomeUnknownError if the answer does not arrive."""

    def roll_back(self, connection: Any) -> Flow[None]: ...

    def awaiting(self) -> Backend:
        """Return the same store for asyncio: this object, or another back end on the same database."""

    def close(self) -> Flow[None]: ...
