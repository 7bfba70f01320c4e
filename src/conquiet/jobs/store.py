"""Job stores: `open_store(dsn)` and its asyncio twin."""

from __future__ import annotations

import os
import random as random_module
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from types import TracebackType
from typing import Any

from conquiet.clock import Clock
from conquiet.flow import Signal, run, run_async
from conquiet.jobs.backends.protocol import Backend
from conquiet.jobs.backends.registry import backend_at
from conquiet.jobs.model import (
    Job,
    JobState,
    Nack,
    NewJob,
    QueueStats,
    SettleResult,
    StoreCapabilities,
)
from conquiet.jobs.operations import JobOperations
from conquiet.jobs.retry import RetrySchedule
from conquiet.payload import DEFAULT_LIMITS, PayloadLimits

__all__ = ["AsyncJobStore", "JobStore", "migrate", "migration_plan", "open_async_store", "open_store"]

_DEFAULT_RETRY = RetrySchedule()


def open_store(
    dsn: str,
    *,
    retry: RetrySchedule = _DEFAULT_RETRY,
    clock: Clock | None = None,
    random: Callable[[], float] | None = None,
    max_lease_expiries: int = 20,
    limits: PayloadLimits = DEFAULT_LIMITS,
    migrate: str = "auto",
) -> JobStore:
    """Open the store at `dsn`: `sqlite:///file.db`, `postgresql://…`, `memory://` (ephemeral, for tests), or a scheme
    that was registered with `conquiet.jobs.backends.register`.

    `migrate="auto"` creates the schema in an empty database; a database with another schema version is refused until
    `migrate()` is called. `clock` is for stores without a clock of their own (memory, SQLite). `random` is used for the
    jitter of retries.
    """
    backend = backend_at(dsn, clock, awaits=False)
    return JobStore(dsn, _operations(backend, retry, random, max_lease_expiries, limits), migrate)


async def open_async_store(
    dsn: str,
    *,
    retry: RetrySchedule = _DEFAULT_RETRY,
    clock: Clock | None = None,
    random: Callable[[], float] | None = None,
    max_lease_expiries: int = 20,
    limits: PayloadLimits = DEFAULT_LIMITS,
    migrate: str = "auto",
) -> AsyncJobStore:
    """`open_store` for asyncio."""
    backend = backend_at(dsn, clock, awaits=True)
    store = AsyncJobStore(dsn, _operations(backend, retry, random, max_lease_expiries, limits))
    await run_async(backend.open(migrate))
    return store


def migrate(dsn: str, target: int | None = None) -> Sequence[str]:
    """Migrate the schema of the database at `dsn` to version `target` (None: the newest), up or down.

    Return the steps taken. Use this for a database that `open_store` refuses; an open store has `migrate()`, too.
    """
    backend = backend_at(dsn, None, awaits=False)
    try:
        return run(backend.migrate(target))
    finally:
        run(backend.close())


def migration_plan(dsn: str, target: int | None = None) -> Sequence[tuple[str, str]]:
    """Return the steps that `migrate(dsn, target)` would take now, as (name, SQL). Nothing is changed or created."""
    backend = backend_at(dsn, None, awaits=False)
    try:
        return run(backend.plan(target))
    finally:
        run(backend.close())


def _operations(
    backend: Backend,
    retry: RetrySchedule,
    random: Callable[[], float] | None,
    max_lease_expiries: int,
    limits: PayloadLimits,
) -> JobOperations:
    return JobOperations(
        backend,
        retry=retry,
        random=random or random_module.random,
        max_lease_expiries=max_lease_expiries,
        limits=limits,
    )


def default_worker() -> str:
    """Return the default name of a worker: host name and process id."""
    return f"{socket.gethostname()}-{os.getpid()}"


class JobStore:
    """A store of leased jobs. Every settle checks the lease token in the same statement. Thread-safe."""

    def __init__(self, dsn: str, operations: JobOperations, migrate: str) -> None:
        """Use `open_store`."""
        self.dsn = dsn
        self.operations = operations
        run(operations.backend.open(migrate))

    @property
    def capabilities(self) -> StoreCapabilities:
        return self.operations.backend.capabilities

    def enqueue(
        self,
        queue: str,
        payload: Mapping[str, Any],
        *,
        id: str | None = None,
        priority: int = 5,
        delay: float = 0.0,
        max_retries: int | None = None,
        correlation_id: str | None = None,
        connection: Any = None,
    ) -> Job:
        """Add a job. With `connection` it is added in the caller's transaction, and exists only if that commits."""
        new = NewJob(payload, id, priority, delay, max_retries, correlation_id)
        return run(self.operations.enqueue(queue, new, connection))

    def enqueue_job(self, queue: str, new: NewJob, *, connection: Any = None) -> Job:
        """Like `enqueue`, for a job described by a `NewJob`."""
        return run(self.operations.enqueue(queue, new, connection))

    def enqueue_many(
        self,
        queue: str,
        items: Iterable[Mapping[str, Any] | NewJob],
        *,
        on_duplicate: str = "error",
        connection: Any = None,
    ) -> list[str]:
        """Add many jobs in one step and return the ids added.

        With `on_duplicate="error"` nothing is added if one of the ids exists; with "skip" existing ids are left out.
        """
        return run(self.operations.enqueue_many(queue, items, on_duplicate, connection))

    def claim(
        self, queues: str | Sequence[str], limit: int = 1, lease_ttl: float = 5.0, worker: str | None = None
    ) -> list[Job]:
        """Lease up to `limit` jobs, by priority (lowest number first), then by age (oldest first)."""
        return run(self.operations.claim(queues, limit, lease_ttl, worker or default_worker()))

    def ack(self, job: Job, *, connection: Any = None) -> None:
        """Mark a job as Succeeded. With `connection` this happens in the caller's transaction."""
        run(self.operations.ack(job, connection))

    def ack_many(self, jobs: Iterable[Job]) -> list[SettleResult]:
        return run(self.operations.ack_many(jobs))

    def nack(self, job: Job, error: BaseException | str | None = None, *, retryable: bool = True) -> None:
        """Report a failure: the job is Ready again after a jittered delay.

        It is Failed if no retries are left, or if `retryable` is False.
        """
        run(self.operations.nack(Nack(job, error, retryable)))

    def nack_many(self, nacks: Iterable[Nack | Job]) -> list[SettleResult]:
        return run(self.operations.nack_many(nacks))

    def heartbeat(self, job: Job) -> Job:
        """Extend the lease to the store's current time plus its ttl. Return the job with the new lease."""
        return run(self.operations.heartbeat(job))

    def heartbeat_many(self, jobs: Iterable[Job]) -> list[SettleResult]:
        return run(self.operations.heartbeat_many(jobs))

    def release(self, job: Job) -> None:
        """Make a leased job Ready again immediately. No retry is consumed."""
        run(self.operations.release(job))

    def get(self, job_id: str) -> Job | None:
        return run(self.operations.get(job_id))

    def list(
        self, *, state: JobState | None = None, queue: str | None = None, limit: int = 100, offset: int = 0
    ) -> list[Job]:
        """Return jobs in the order in which they were enqueued."""
        return run(self.operations.list_jobs(state, queue, limit, offset))

    def stats(self, queue: str | None = None) -> dict[str, QueueStats]:
        return run(self.operations.stats(queue))

    def retry(self, job_id: str) -> Job:
        """Make a Failed job Ready again, with all its retries. Meant for operators."""
        return run(self.operations.retry(job_id))

    def discard(self, job_id: str) -> None:
        """Remove a Ready or Failed job. Meant for operators."""
        run(self.operations.discard(job_id))

    def prune(self, older_than: float) -> int:
        """Remove jobs that finished more than `older_than` seconds ago and return how many.

        Their ids can be used again.
        """
        return run(self.operations.prune(older_than))

    @contextmanager
    def listen(self, *queues: str) -> Iterator[Callable[[float], None]]:
        """Yield a function `wait(seconds)` that returns as soon as there may be work, or when the time is up."""
        never = Signal()
        run(self.operations.backend.wait_for_work(queues, 0.0, never))  # from here on no wake-up is missed
        yield lambda seconds: run(self.operations.backend.wait_for_work(queues, seconds, never))

    def migrate(self, target: int | None = None) -> Sequence[str]:
        """Migrate the schema to version `target` (None: the newest), up or down, and return the steps taken."""
        return run(self.operations.backend.migrate(target))

    def close(self) -> None:
        run(self.operations.backend.close())

    def __enter__(self) -> JobStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncJobStore:
    """`JobStore` for asyncio: the same operations, as coroutines. Use `await open_async_store(…)` to create one."""

    def __init__(self, dsn: str, operations: JobOperations) -> None:
        """Use `open_async_store`."""
        self.dsn = dsn
        self.operations = operations

    @property
    def capabilities(self) -> StoreCapabilities:
        return self.operations.backend.capabilities

    async def enqueue(
        self,
        queue: str,
        payload: Mapping[str, Any],
        *,
        id: str | None = None,
        priority: int = 5,
        delay: float = 0.0,
        max_retries: int | None = None,
        correlation_id: str | None = None,
        connection: Any = None,
    ) -> Job:
        new = NewJob(payload, id, priority, delay, max_retries, correlation_id)
        return await run_async(self.operations.enqueue(queue, new, connection))

    async def enqueue_job(self, queue: str, new: NewJob, *, connection: Any = None) -> Job:
        return await run_async(self.operations.enqueue(queue, new, connection))

    async def enqueue_many(
        self,
        queue: str,
        items: Iterable[Mapping[str, Any] | NewJob],
        *,
        on_duplicate: str = "error",
        connection: Any = None,
    ) -> list[str]:
        return await run_async(self.operations.enqueue_many(queue, items, on_duplicate, connection))

    async def claim(
        self, queues: str | Sequence[str], limit: int = 1, lease_ttl: float = 5.0, worker: str | None = None
    ) -> list[Job]:
        return await run_async(self.operations.claim(queues, limit, lease_ttl, worker or default_worker()))

    async def ack(self, job: Job, *, connection: Any = None) -> None:
        await run_async(self.operations.ack(job, connection))

    async def ack_many(self, jobs: Iterable[Job]) -> list[SettleResult]:
        return await run_async(self.operations.ack_many(jobs))

    async def nack(
        self, job: Job, error: BaseException | str | None = None, *, retryable: bool = True
    ) -> None:
        await run_async(self.operations.nack(Nack(job, error, retryable)))

    async def nack_many(self, nacks: Iterable[Nack | Job]) -> list[SettleResult]:
        return await run_async(self.operations.nack_many(nacks))

    async def heartbeat(self, job: Job) -> Job:
        return await run_async(self.operations.heartbeat(job))

    async def heartbeat_many(self, jobs: Iterable[Job]) -> list[SettleResult]:
        return await run_async(self.operations.heartbeat_many(jobs))

    async def release(self, job: Job) -> None:
        await run_async(self.operations.release(job))

    async def get(self, job_id: str) -> Job | None:
        return await run_async(self.operations.get(job_id))

    async def list(
        self, *, state: JobState | None = None, queue: str | None = None, limit: int = 100, offset: int = 0
    ) -> list[Job]:
        return await run_async(self.operations.list_jobs(state, queue, limit, offset))

    async def stats(self, queue: str | None = None) -> dict[str, QueueStats]:
        return await run_async(self.operations.stats(queue))

    async def retry(self, job_id: str) -> Job:
        return await run_async(self.operations.retry(job_id))

    async def discard(self, job_id: str) -> None:
        await run_async(self.operations.discard(job_id))

    async def prune(self, older_than: float) -> int:
        return await run_async(self.operations.prune(older_than))

    @asynccontextmanager
    async def listen(self, *queues: str) -> AsyncIterator[Callable[[float], Awaitable[None]]]:
        """Yield a coroutine function `wait(seconds)`: it returns when there may be work, or when the time is up."""
        never, backend = Signal(), self.operations.backend
        await run_async(backend.wait_for_work(queues, 0.0, never))
        yield lambda seconds: run_async(backend.wait_for_work(queues, seconds, never))

    async def migrate(self, target: int | None = None) -> Sequence[str]:
        return await run_async(self.operations.backend.migrate(target))

    async def close(self) -> None:
        await run_async(self.operations.backend.close())

    async def __aenter__(self) -> AsyncJobStore:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
