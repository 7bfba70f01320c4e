"""Opens job stores by their DSN: `open_store(dsn)` and its asyncio twin; and migrates their schema."""

from __future__ import annotations

import random as random_module
from collections.abc import Callable, Sequence

from conquiet.clock import Clock
from conquiet.flow import run, run_async
from conquiet.jobs.backends.protocol import Backend
from conquiet.jobs.backends.registry import MAX_CONNECTIONS, backend_at
from conquiet.jobs.operations import JobOperations
from conquiet.jobs.retry import RetrySchedule
from conquiet.jobs.store import AsyncJobStore, JobStore
from conquiet.payload import DEFAULT_LIMITS, PayloadLimits

__all__ = ["migrate", "migration_plan", "open_async_store", "open_store"]

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
    max_connections: int = MAX_CONNECTIONS,
    retention: float | None = None,
) -> JobStore:
    """Open the store at `dsn`: `sqlite:///file.db`, `postgresql://…`, `memory://` (ephemeral, for tests), or a scheme
    that was registered with `conquiet.jobs.backends.register`.

    `migrate="auto"` creates the schema in an empty database; a database with another schema version is refused until
    `migrate()` is called. `clock` is for stores without a clock of their own (memory, SQLite). `random` is used for the
    jitter of retries. `max_connections` is for PostgreSQL: how many calls use a connection at the same time; others wait up
    to 30 s for their turn. What workers need for themselves is not counted. With `retention`, the workers of this store
    remove jobs that finished so many seconds ago, in small steps.
    """
    backend = backend_at(dsn, clock, awaits=False, max_connections=max_connections)
    return JobStore(dsn, _operations(backend, retry, random, max_lease_expiries, limits, retention), migrate)


async def open_async_store(
    dsn: str,
    *,
    retry: RetrySchedule = _DEFAULT_RETRY,
    clock: Clock | None = None,
    random: Callable[[], float] | None = None,
    max_lease_expiries: int = 20,
    limits: PayloadLimits = DEFAULT_LIMITS,
    migrate: str = "auto",
    max_connections: int = MAX_CONNECTIONS,
    retention: float | None = None,
) -> AsyncJobStore:
    """`open_store` for asyncio."""
    backend = backend_at(dsn, clock, awaits=True, max_connections=max_connections)
    store = AsyncJobStore(dsn, _operations(backend, retry, random, max_lease_expiries, limits, retention))
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
    retention: float | None,
) -> JobOperations:
    return JobOperations(
        backend,
        retry=retry,
        random=random or random_module.random,
        max_lease_expiries=max_lease_expiries,
        limits=limits,
        retention=retention,
    )
