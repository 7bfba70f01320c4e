"""The job worker: it claims, runs, keeps alive and settles jobs until it is stopped."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

from conquiet.checks import checked_int, checked_name, checked_queues, checked_seconds
from conquiet.clock import SYSTEM_CLOCK
from conquiet.errors import JobConfigError
from conquiet.flow import run, run_async
from conquiet.jobs.operations import JobOperations
from conquiet.jobs.store import AsyncJobStore, JobStore, default_worker
from conquiet.jobs.worker.committer import WorkerCounts
from conquiet.jobs.worker.context import JobContext
from conquiet.jobs.worker.deferral import UNKNOWN_AFTER, Deferral
from conquiet.jobs.worker.execution import Executor, check_handlers
from conquiet.jobs.worker.floor import Floor
from conquiet.jobs.worker.lanes import Lanes
from conquiet.jobs.worker.mixture import MixedExecutor
from conquiet.jobs.worker.outage import Outage
from conquiet.jobs.worker.plan import Delays, HandlerPlans, JobPlans, TimeLimit
from conquiet.jobs.worker.run import WorkerRun, WorkerSettings
from conquiet.signals import stop_on_sigterm

__all__ = ["JobWorker"]

ISOLATIONS = ("thread", "process", "async", "mixed")
_IN_LOOP = ("async", "mixed")


class JobWorker:
    """Runs handlers for the jobs of one or more queues.

    A handler takes the job and, optionally, a `JobContext` as its second argument. An exception in the handler fails
    the job, which runs again if it has retries left. `isolation` sets where the handler runs and how it is stopped at
    `execution_timeout`: "thread" (it cannot be stopped and is abandoned), "process" (killed), "async" (cancelled), "mixed"
    (coroutine functions as with "async", others as with "thread").

    `queues` may map names to numbers: such a queue has a concurrency of its own, queues with None share `concurrency`.
    Handlers on threads that ignore their time limit keep these threads; when 16 do, the worker claims nothing until one
    ends, or `run` ends with `AbandonedThreadsError` if `ends_when_hung` is true or it works until idle.
    `execution_timeout` may be a function of the job. `retry_delays` is a function of the job, too, and returns the
    schedule that gives the delay before a retry (None: the store's). The number of retries is the job's `max_retries`.
    `JobPlans` in place of handlers provide all of this; these two options have no effect then.

    A job whose handler or plan raises `TaskMismatchError`, because it needs code of another version, is given back, and
    Failed when no worker could run it for `unknown_after` seconds.

    With `handle_signals`, SIGTERM calls `stop()` while the worker runs in the main thread, and then the handler that was
    there before. Without, signals are left to the program that the worker is a part of, such as a web server.
    """

    def __init__(
        self,
        store: JobStore | AsyncJobStore,
        handler: Callable[..., Any] | Mapping[str, Callable[..., Any]] | JobPlans,
        *,
        queues: str | Sequence[str] | Mapping[str, int | None] | None = None,
        concurrency: int = 8,
        lease_ttl: float = 5.0,
        execution_timeout: float | TimeLimit | None = None,
        retry_delays: Delays | None = None,
        isolation: str = "thread",
        prefetch: int | None = None,
        shutdown_timeout: float = 30.0,
        worker: str | None = None,
        ends_when_hung: bool = False,
        handle_signals: bool = False,
        unknown_after: float = UNKNOWN_AFTER,
    ) -> None:
        if isolation not in ISOLATIONS:
            raise JobConfigError(f"isolation must be one of {', '.join(ISOLATIONS)}, not {isolation!r}")
        if queues is None:
            if not isinstance(handler, Mapping):
                raise JobConfigError("queues= must be named, or handlers given as {queue: handler}")
            queues = tuple(handler)
        if isinstance(store, AsyncJobStore) and isolation != "async":
            raise JobConfigError(
                f"isolation {isolation!r} needs a store made by open_store, not an AsyncJobStore"
            )
        self._store = store
        self._isolation = isolation
        self._handle_signals = handle_signals
        if isinstance(handler, JobPlans):
            self._plans = handler
        else:
            self._plans = HandlerPlans(handler, execution_timeout, retry_delays)
        settings = WorkerSettings(
            queues=checked_queues(queues, error=JobConfigError),
            name=checked_name("worker", worker or default_worker(), error=JobConfigError),
            concurrency=checked_int("concurrency", concurrency, 1, 10_000, error=JobConfigError),
            lease_ttl=checked_seconds("lease_ttl", lease_ttl, above_zero=True, error=JobConfigError),
            prefetch=None
            if prefetch is None
            else checked_int("prefetch", prefetch, 0, 100_000, error=JobConfigError),
            shutdown_timeout=checked_seconds("shutdown_timeout", shutdown_timeout, error=JobConfigError),
            ends_when_hung=ends_when_hung,
        )
        self._deferral = Deferral(checked_seconds("unknown_after", unknown_after, error=JobConfigError))
        check_handlers(self._plans.handlers(settings.queues), isolation)
        self._lane_settings = _lanes(settings, queues if isinstance(queues, Mapping) else {})
        self._lanes: Lanes | None = None
        self._outage: Outage | None = None  # while it runs
        self._busy = threading.Lock()
        self._stops = 0

    @property
    def counts(self) -> WorkerCounts:
        """The counts of this run, or of the last one."""
        return WorkerCounts() if self._lanes is None else self._lanes.counts

    def run(self) -> WorkerCounts:
        """Work until `stop()`, or SIGTERM with `handle_signals`, and return the counts."""
        return self._run(until_idle=False, wait_for_delayed=False)

    def run_until_idle(self, *, wait_for_delayed: bool = False) -> WorkerCounts:
        """Work until no job is claimable or in flight here. Wait for delayed jobs only with `wait_for_delayed`."""
        return self._run(until_idle=True, wait_for_delayed=wait_for_delayed)

    async def run_async(self, *, until_idle: bool = False, wait_for_delayed: bool = False) -> WorkerCounts:
        """`run` inside an event loop (isolation "async" or "mixed")."""
        if self._isolation not in _IN_LOOP:
            raise JobConfigError(f"run_async needs isolation='async' or 'mixed', not {self._isolation!r}")
        used: list[JobOperations] = []
        with self._only_run():
            try:
                return await run_async(self._start(used).run(until_idle, wait_for_delayed))
            finally:
                for operations in used:
                    if operations.backend is not self._store.operations.backend:
                        await run_async(operations.backend.close())

    def stop(self) -> None:
        """Drain: claim no more jobs, release those that have not started, finish the rest.

        A second call ends the worker without waiting.
        """
        self._stops += 1
        if self._lanes is not None:
            self._lanes.stop()

    def running(self) -> list[JobContext]:
        """Return the jobs that are running now, with their progress."""
        return [] if self._lanes is None else self._lanes.running()

    def _run(self, until_idle: bool, wait_for_delayed: bool) -> WorkerCounts:
        if self._isolation in _IN_LOOP:
            _refuse_running_loop()
            return asyncio.run(self.run_async(until_idle=until_idle, wait_for_delayed=wait_for_delayed))
        with self._only_run():
            return run(self._start([]).run(until_idle, wait_for_delayed))

    @contextmanager
    def _only_run(self) -> Iterator[None]:
        if not self._busy.acquire(blocking=False):
            raise JobConfigError("this worker is already running: create another one")
        outage = self._outage = Outage.enter(self._store.dsn, SYSTEM_CLOCK, random.random)
        try:
            with stop_on_sigterm(self.stop) if self._handle_signals else nullcontext():
                yield
        finally:
            outage.leave()
            self._busy.release()

    def _start(self, used: list[JobOperations]) -> Lanes:
        self._lanes = Lanes(lambda: self._worker_runs(used), self._stops)
        return self._lanes

    def _worker_runs(self, used: list[JobOperations]) -> list[WorkerRun]:
        floor = Floor(SYSTEM_CLOCK)
        lanes = enumerate(self._lane_settings)
        return [self._worker_run(lane, floor, used, retains=number == 0) for number, lane in lanes]

    def _worker_run(
        self, lane: WorkerSettings, floor: Floor, used: list[JobOperations], *, retains: bool
    ) -> WorkerRun:
        own = operations = self._store.operations.for_worker()
        opens_store = self._isolation in _IN_LOOP and not isinstance(self._store, AsyncJobStore)
        if opens_store:
            operations = operations.awaiting()
            used.append(operations)
        if self._isolation == "mixed":
            executor: Executor = MixedExecutor(self._plans, operations, own, self._deferral)
        else:
            executor = Executor(self._plans, operations, self._isolation, self._deferral)
        return WorkerRun(
            operations,
            executor,
            lane,
            SYSTEM_CLOCK,
            random.random,
            opens_store=opens_store,
            floor=floor,
            outage=self._outage,
            retains=retains,
        )


def _refuse_running_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise JobConfigError(
        "an event loop is already running in this thread: use await worker.run_async(), with until_idle=True "
        "in place of run_until_idle()"
    )


def _lanes(settings: WorkerSettings, places: Mapping[str, int | None]) -> list[WorkerSettings]:
    own = {queue: number for queue, number in places.items() if number is not None}
    shared = tuple(queue for queue in settings.queues if queue not in own)
    lanes = [replace(settings, queues=shared)] if shared else []
    for queue, number in own.items():
        concurrency = checked_int(
            f"the concurrency of queue {queue!r}", number, 1, 10_000, error=JobConfigError
        )
        lanes.append(replace(settings, queues=(queue,), concurrency=concurrency))
    return lanes
