"""Reconciliation in one process: HTTP intake, queue, workers and scheduler on one database."""

from __future__ import annotations

import logging
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Self

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool

from conquiet.clock import SYSTEM_CLOCK, Clock, utc
from conquiet.errors import ReconcileConfigError
from conquiet.local import QUEUE_SETTINGS, PriorityDelayQueue, QueueSettings, WorkerPool
from conquiet.reconcile.database import open_database
from conquiet.reconcile.intake.http import create_app
from conquiet.reconcile.platforms.fetcher import PlatformFetcher
from conquiet.reconcile.reconciler import Reconciler
from conquiet.reconcile.rules import DEFAULT_RULES, Rules
from conquiet.reconcile.scheduler import RetryScheduler, resume

__all__ = ["ReconciliationService"]

_log = logging.getLogger("conquiet.reconcile")


class ReconciliationService:
    """Use `with ReconciliationService(dsn, fetcher): …`, or an ASGI server with its `app`, which starts and stops it.

    The queue is in memory; the database has everything. The next start finds attempts that a stop or a crash left
    unfinished.
    """

    def __init__(
        self,
        dsn: str,
        fetcher: PlatformFetcher,
        *,
        workers: int = 2,
        rules: Rules = DEFAULT_RULES,
        queue_settings: QueueSettings = QUEUE_SETTINGS,
        scheduler_seconds: float = 5.0,
        stop_seconds: float = 30.0,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        # A connection for each worker, for the scheduler, and for a few concurrent requests.
        self.sessions = open_database(dsn, pool_size=workers + 5)
        self.queue = PriorityDelayQueue(queue_settings, clock)
        self.scheduler = RetryScheduler(self.sessions, self.queue, clock=clock)
        self.app: Starlette = create_app(
            self.sessions,
            self.queue,
            platforms=fetcher.platforms,
            rules=rules,
            clock=clock,
            lifespan=self._lifespan,
        )
        reconciler = Reconciler(fetcher, self.sessions, rules=rules, clock=clock)
        self._pool = WorkerPool(self.queue, reconciler, workers, session_factory=self.sessions)
        self._scheduling = threading.Thread(
            target=self.scheduler.run, args=(scheduler_seconds,), name="conquiet scheduler", daemon=True
        )
        self._stop_seconds = stop_seconds
        self._clock = clock
        self._started = False

    def start(self) -> None:
        """Schedule unfinished reports, then start. A service can be started only once."""
        if self._started:
            raise ReconcileConfigError("this service was started before: create a new one")
        self._started = True
        resume(self.sessions, utc(self._clock.time()))
        self._pool.start()
        self._scheduling.start()

    def stop(self) -> None:
        """Stop accepting reports and finish ready attempts for at most `stop_seconds`; the next start does the rest."""
        self.queue.shutdown()
        self.scheduler.stop()
        if self._started:
            self._scheduling.join(self._stop_seconds)
            if not self._pool.stop(self._stop_seconds):
                left = self.queue.purge()
                _log.warning(
                    "stopped with %d attempts in the queue: they are made after the next start",
                    left,
                    extra={"event": "service_stopped", "left": left},
                )
                self._pool.join(self._stop_seconds)  # waits for running attempts
        self.sessions.kw["bind"].dispose()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @asynccontextmanager
    async def _lifespan(self, _app: Starlette) -> AsyncIterator[None]:
        await run_in_threadpool(self.start)
        try:
            yield
        finally:
            await run_in_threadpool(self.stop)
