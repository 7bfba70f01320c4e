"""Job stores as users see them, on threads and on asyncio: shells around the flows of `JobOperations`."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from types import TracebackType
from typing import Any, Unpack

from conquiet.flow import Signal, run, run_async
from conquiet.jobs.backends.protocol import Listing
from conquiet.jobs.listing import ListOptions
from conquiet.jobs.model import (
    Job,
    JobPage,
    Nack,
    NewJob,
    QueueStats,
    SettleResult,
    StoreCapabilities,
)
from conquiet.jobs.operations import JobOperations

__all__ = ["AsyncJobStore", "JobStore", "default_worker"]


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
        notify: bool = True,
    ) -> Job:
        """Add a job. With `connection` it is added in the caller's transaction, and exists only if that commits.

        With `notify=False` no waiting worker is woken: it finds the job when it polls, within 2 s.
        """
        new = NewJob(payload, id, priority, delay, max_retries, correlation_id)
        return run(self.operations.enqueue(queue, new, connection, notify))

    def enqueue_job(self, queue: str, new: NewJob, *, connection: Any = None, notify: bool = True) -> Job:
        """Like `enqueue`, for a job described by a `NewJob`."""
        return run(self.operations.enqueue(queue, new, connection, notify))

    def enqueue_many(
        self,
        queue: str,
        items: Iterable[Mapping[str, Any] | NewJob],
        *,
        on_duplicate: str = "error",
        connection: Any = None,
        notify: bool = True,
    ) -> list[str]:
        """Add many jobs in one step and return the ids added.

        With `on_duplicate="error"` nothing is added if one of the ids exists; with "skip" existing ids are left out.
        """
        return run(self.operations.enqueue_many(queue, items, on_duplicate, connection, notify))

    def claim(
        self,
        queues: str | Sequence[str],
        limit: int = 1,
        lease_ttl: float = 5.0,
        worker: str | None = None,
        begun: int | None = None,
    ) -> list[Job]:
        """Lease up to `limit` jobs, by priority (lowest number first), then by age (oldest first).

        Of several queues each has its turn: among jobs of the same priority the oldest of each queue comes first, in the
        order in which the queues are named, then the second oldest of each.

        An expired lease is charged only to a job that has begun. `begun` says how many of these jobs begin at once, in
        this order (default: all); call `begin_many` for the others before they begin, and for jobs whose lease has
        expired before.
        """
        return run(self.operations.claim(queues, limit, lease_ttl, worker or default_worker(), begun))

    def begin_many(self, jobs: Iterable[Job]) -> list[SettleResult]:
        """Record that leased jobs begin now. From then on an expiry of their leases is charged."""
        return run(self.operations.begin_many(jobs))

    def ack_and_begin(
        self, acks: Iterable[Job], begins: Iterable[Job]
    ) -> tuple[list[SettleResult], list[SettleResult]]:
        """`ack_many` and `begin_many` in one step: jobs that have ended, and those that take their places."""
        return run(self.operations.ack_and_begin(acks, begins))

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

    def list(self, **wanted: Unpack[ListOptions]) -> JobPage:
        """Return a page of jobs in the order in which they were enqueued, or with `newest_first` in the reverse.

        By `state`, `queue`, `task` (the name that a job calls), `correlation_id` and age (`older_than` and `newer_than`
        seconds since it was enqueued); at most `limit` (100); `after` is `next` of the page before.
        """
        return run(self.operations.list_jobs(Listing(**wanted)))

    def stats(self, queue: str | None = None) -> dict[str, QueueStats]:
        return run(self.operations.stats(queue))

    def backlog(self, queue: str, limit: int) -> int:
        """Return how many jobs of the queue can be claimed now, counted up to `limit` and no further.

        These are the Ready jobs that are due and the jobs whose leases have lapsed. Cheap, where `stats` counts everything.
        """
        return run(self.operations.backlog(queue, limit))

    def retry(self, job_id: str) -> Job:
        """Make a Failed job Ready again, with all its retries. Meant for operators."""
        return run(self.operations.retry(job_id))

    def discard(self, job_id: str) -> None:
        """Remove a Ready or Failed job. Meant for operators."""
        run(self.operations.discard(job_id))

    def prune(self, older_than: float) -> int:
        """Remove jobs that finished more than `older_than` seconds ago and return how many.

        Their ids can be used again. They are removed in many small steps, between which others go on.
        """
        return run(self.operations.prune(older_than))

    @contextmanager
    def listen(self, *queues: str) -> Iterator[Callable[[float], None]]:
        """Yield a function `wait(seconds)` that returns as soon as there may be work, or when the time is up."""
        never = Signal()
        run(self.operations.backend.wait_for_work(queues, 0.0, never))  # from here on no wake-up is missed
        try:
            yield lambda seconds: run(self.operations.backend.wait_for_work(queues, seconds, never))
        finally:
            run(self.operations.backend.rest())

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
        notify: bool = True,
    ) -> Job:
        new = NewJob(payload, id, priority, delay, max_retries, correlation_id)
        return await run_async(self.operations.enqueue(queue, new, connection, notify))

    async def enqueue_job(
        self, queue: str, new: NewJob, *, connection: Any = None, notify: bool = True
    ) -> Job:
        return await run_async(self.operations.enqueue(queue, new, connection, notify))

    async def enqueue_many(
        self,
        queue: str,
        items: Iterable[Mapping[str, Any] | NewJob],
        *,
        on_duplicate: str = "error",
        connection: Any = None,
        notify: bool = True,
    ) -> list[str]:
        return await run_async(self.operations.enqueue_many(queue, items, on_duplicate, connection, notify))

    async def claim(
        self,
        queues: str | Sequence[str],
        limit: int = 1,
        lease_ttl: float = 5.0,
        worker: str | None = None,
        begun: int | None = None,
    ) -> list[Job]:
        return await run_async(
            self.operations.claim(queues, limit, lease_ttl, worker or default_worker(), begun)
        )

    async def begin_many(self, jobs: Iterable[Job]) -> list[SettleResult]:
        return await run_async(self.operations.begin_many(jobs))

    async def ack_and_begin(
        self, acks: Iterable[Job], begins: Iterable[Job]
    ) -> tuple[list[SettleResult], list[SettleResult]]:
        return await run_async(self.operations.ack_and_begin(acks, begins))

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

    async def list(self, **wanted: Unpack[ListOptions]) -> JobPage:
        return await run_async(self.operations.list_jobs(Listing(**wanted)))

    async def stats(self, queue: str | None = None) -> dict[str, QueueStats]:
        return await run_async(self.operations.stats(queue))

    async def backlog(self, queue: str, limit: int) -> int:
        return await run_async(self.operations.backlog(queue, limit))

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
        try:
            yield lambda seconds: run_async(backend.wait_for_work(queues, seconds, never))
        finally:
            await run_async(backend.rest())

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
