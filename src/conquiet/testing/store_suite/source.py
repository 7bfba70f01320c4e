"""What the suite needs from its user, and the steps that its tests share."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime, timedelta
from typing import Any, Protocol, TypeVar

import pytest

from conquiet.jobs import Job, JobState, JobStore, Lease

__all__ = ["Advance", "Fixtures", "Scene", "StoreSource", "close_to", "proves", "unchanged", "with_token"]

Advance = Callable[[float], None]
Test = TypeVar("Test", bound=Callable[..., Any])

QUEUE = "orders"
# The tolerance for times: a store may use a real clock, which runs during a test.
_SLACK = timedelta(seconds=0.2)


class StoreSource(Protocol):
    """Opens the stores of a test. All stores of one source share their data, which is empty at first."""

    def open(self, **options: Any) -> JobStore:
        """Open another store; the options are those of `open_store`: retry, random, max_lease_expiries, limits."""

    def advance(self, seconds: float) -> None:
        """Let time pass for all stores: move the clock that leases depend on, or wait."""

    def transaction(self) -> AbstractContextManager[Any]:
        """A connection for `connection=`, in a transaction that the end of the block commits and an exception rolls
        back. Called only if `capabilities.joins_transactions` is true."""


def proves(*clauses: str) -> Callable[[Test], Test]:
    """Note which clauses of the specification a test proves, as its attribute `clauses`.

    Not a pytest marker: markers would have to be registered wherever the suite is used.
    """

    def note(test: Test) -> Test:
        test.clauses = clauses  # type: ignore[attr-defined]
        return test

    return note


class Fixtures:
    """The fixtures of the suite; only `stores` has to be written."""

    @pytest.fixture
    def stores(self) -> StoreSource:
        raise NotImplementedError("write a fixture `stores` that returns a StoreSource without jobs")

    @pytest.fixture
    def store(self, stores: StoreSource) -> JobStore:
        return stores.open()

    @pytest.fixture
    def advance(self, stores: StoreSource) -> Advance:
        return stores.advance

    @pytest.fixture
    def scene(self, store: JobStore, advance: Advance) -> Scene:
        return Scene(store, advance)


class Scene:
    """Brings jobs into a state. Each method returns the job with its last lease, if it had one."""

    def __init__(self, store: JobStore, advance: Advance) -> None:
        self.store = store
        self.advance = advance

    def claim(self, **options: Any) -> Job:
        """Claim the only claimable job."""
        (job,) = self.store.claim(QUEUE, limit=10, **options)
        return job

    def in_flight(self, *, queue: str = QUEUE, ttl: float = 10.0, **options: Any) -> Job:
        """A new job, leased; other claimable jobs are leased with it."""
        job = self.store.enqueue(queue, {}, **options)
        (held,) = (held for held in self.store.claim(queue, 1000, lease_ttl=ttl) if held.id == job.id)
        return held

    def reach(self, state: JobState | None, **options: Any) -> Job:
        """A job that had a lease and is now in `state` (None: removed), as it was when it was leased."""
        held = self.in_flight(**options)
        match state:
            case JobState.READY:
                self.store.release(held)
            case JobState.FAILED:
                self.store.nack(held, "no", retryable=False)
            case JobState.SUCCEEDED:
                self.store.ack(held)
            case None:
                self.store.nack(held, "no", retryable=False)
                self.store.discard(held.id)
        assert self.state(held.id) == state
        return held

    def state(self, job_id: str) -> JobState | None:
        job = self.store.get(job_id)
        return None if job is None else job.state

    def job(self, job_id: str) -> Job:
        """The job as it is now."""
        job = self.store.get(job_id)
        assert job is not None
        return job


def with_token(job: Job, token: str) -> Job:
    """The same job, held with another token."""
    assert job.lease is not None
    lease = Lease(token, job.lease.version, job.lease.expires_at, job.lease.ttl, job.lease.worker)
    parts = {name: getattr(job, name) for name in inspect.signature(Job).parameters}
    return Job(**{**parts, "lease": lease})


@contextmanager
def unchanged(store: JobStore) -> Iterator[None]:
    """The block must not change any job of the store."""
    before = store.list(limit=100_000)
    yield
    assert store.list(limit=100_000) == before


def close_to(found: datetime | None, base: datetime, seconds: float) -> bool:
    """Whether `found` is `seconds` after `base`."""
    assert found is not None
    return abs(found - base - timedelta(seconds=seconds)) <= _SLACK
