"""The interface of a back end: rows in, rows out. Each method is one atomic step, as a flow.

Everything that stores have in common (checks, JSON, retry decisions, errors per job) is in `operations.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple, Protocol

from conquiet.flow import Flow, Signal
from conquiet.jobs.model import JobState, QueueStats, StoreCapabilities

__all__ = ["PRUNE_STEP", "Backend", "Claim", "Inserted", "JobRow", "Listing", "NewRow", "Settlement"]

PRUNE_STEP = 1_000  # jobs that one step of `prune` removes at most: a few milliseconds


class NewRow(NamedTuple):
    id: str
    payload: str
    priority: int
    delay: float
    max_retries: int
    correlation_id: str | None
    at: float | None = None  # due at this time instead of after `delay`, by the store's clock


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
    lease_begun: bool | int = True


class Claim(NamedTuple):
    queues: tuple[str, ...]
    limit: int
    ttl: float
    worker: str
    max_lease_expiries: int
    # How many of the jobs, in claim order, begin at once; None: all. A job that has lost a lease before is not among them:
    # it begins alone, by `settle`.
    begun: int | None = None


class Listing(NamedTuple):
    """One page of jobs, in the order in which they were enqueued, or with `newest_first` in the reverse of it."""

    state: JobState | None = None
    queue: str | None = None
    task: str | None = None
    correlation_id: str | None = None
    newest_first: bool = False
    limit: int = 100
    after: int | None = None  # the number of the last job of the page before
    older_than: float | None = None  # enqueued at least so many seconds ago, by the store's clock
    newer_than: float | None = None


class Settlement(NamedTuple):
    """The end of a lease. `state` is the new state of the job; `delay` counts from the store's current time.

    The outcome "unbegun" is not written to the history: nothing has happened.
    """

    job_id: str
    token: str
    state: JobState
    outcome: str
    retry: bool = False
    delay: float | None = None
    error: str | None = None
    error_type: str | None = None
    category: str | None = None
    traceback: str | None = None


class Backend(Protocol):
    capabilities: StoreCapabilities

    def open(self, migrate: str) -> Flow[None]:
        """Connect, and check or create the schema."""

    def migrate(self, target: int | None) -> Flow[list[str]]:
        """Migrate the schema to version `target` (None: the newest), up or down. Return the names of the steps."""

    def plan(self, target: int | None) -> Flow[list[tuple[str, str]]]:
        """Return the steps that `migrate` would take now, as (name, SQL). Nothing is changed or created."""

    def insert(
        self, queue: str, rows: Sequence[NewRow], skip: bool, connection: Any, notify: bool = True
    ) -> Flow[Inserted]:
        """Add rows. With `skip`, rows whose ids exist are left out; otherwise raise DuplicateJobError and add none.
        Without `notify`, those who wait for work find them by polling."""

    def claim(self, claim: Claim) -> Flow[tuple[list[JobRow], bool]]:
        """Lease the next jobs. Return them and whether this claim marked jobs as Failed, so that more may be claimable.

        Raise DamagedRowError, with nothing leased, if the statement fails because of a value in a row.
        """

    def set_aside(self, job_id: Any, token: str, reason: str) -> Flow[None]:
        """Fail a leased job whose row cannot be read. Only the id and the token of the row are used."""

    def set_aside_next(self, queues: Sequence[str], reason: str) -> Flow[bool]:
        """Fail the job that a claim would lease next. Return False if there is none."""

    def settle(
        self, settlements: Sequence[Settlement], connection: Any, begins: Sequence[tuple[str, str]] = ()
    ) -> Flow[set[str]]:
        """End leases, and record that the jobs of `begins`, given as (job id, token), begin: only these are charged if
        their leases lapse. Return the tokens whose lease was current."""

    def heartbeat(self, leases: Sequence[tuple[str, str]]) -> Flow[dict[str, float]]:
        """Extend leases, given as (job id, token). Return the new expiry by token, for leases that were current."""

    def get(self, job_id: str) -> Flow[JobRow | None]: ...

    def select(self, listing: Listing) -> Flow[list[tuple[int, JobRow]]]:
        """Return a page of jobs, each with its number: these increase in the order in which jobs were enqueued."""

    def stats(self, queue: str | None) -> Flow[list[QueueStats]]: ...

    def backlog(self, queue: str, limit: int) -> Flow[int]:
        """Return how many jobs of the queue can be claimed now. Counting ends at `limit`: it must cost no more than that."""

    def retry(self, job_id: str) -> Flow[bool]:
        """Make a Failed job Ready, with all its retries. Return False if it is not Failed."""

    def discard(self, job_id: str) -> Flow[bool]:
        """Remove the job if it is Ready or Failed. Return False if it is not."""

    def prune(self, older_than: float) -> Flow[int]:
        """Remove up to PRUNE_STEP jobs that finished at least `older_than` seconds ago. Return how many: fewer if that
        were all."""

    def next_due(self, queues: Sequence[str]) -> Flow[float | None]:
        """Return the seconds until a job of these queues is due, 0 if one is due now (it may be locked). Return None if
        all jobs are finished."""

    def wait_for_work(self, queues: Sequence[str], seconds: float, stop: Signal) -> Flow[None]:
        """Return when there may be work, after `seconds`, or when `stop` is set."""

    def rest(self) -> Flow[None]:
        """Give up what only waiting needs: one that has waited for work here has ended."""

    def begin(self) -> Flow[Any]:
        """Return a connection in a new transaction, for a handler."""

    def commit(self, connection: Any) -> Flow[None]:
        """Commit the transaction of `begin`. Raise StoreOutcomeUnknownError if the answer does not arrive."""

    def roll_back(self, connection: Any) -> Flow[None]: ...

    def awaiting(self) -> Backend:
        """Return the same store for asyncio: this object, or another back end on the same database."""

    def for_worker(self) -> Backend:
        """Return the same store for the calls of a worker, which must not wait behind those of its handlers: this
        object, or another one with the same connections."""

    def close(self) -> Flow[None]: ...
