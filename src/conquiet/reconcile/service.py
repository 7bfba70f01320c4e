"""Reconciliation in one process: HTTP intake, queue, workers and scheduler on one database."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import monotonic
from typing import TYPE_CHECKING, Self

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool

from conquiet.checks import checked_seconds
from conquiet.clock import SYSTEM_CLOCK, Clock, utc
from conquiet.errors import ConquietError, ReconcileConfigError, redact
from conquiet.local import QUEUE_SETTINGS, PriorityDelayQueue, QueueSettings, WorkerPool
from conquiet.observe import SafeLogger
from conquiet.reconcile.database import open_database
from conquiet.reconcile.intake.http import create_app
from conquiet.reconcile.intake.sharing import Sharing
from conquiet.reconcile.job import ReconciliationJob
from conquiet.reconcile.platforms.fetcher import PlatformFetcher
from conquiet.reconcile.reconciler import Reconciler
from conquiet.reconcile.rules import DEFAULT_RULES, Rules
from conquiet.reconcile.scheduler import RetryScheduler, hand_back, resume

if TYPE_CHECKING:
    from conquiet.coordination import SharedState

__all__ = ["ReconciliationService"]

_log = SafeLogger("conquiet.reconcile")
_ANSWER_SECONDS = 5.0  # of the database


class ReconciliationService:
    """Use `with ReconciliationService(dsn, fetcher): …`, or an ASGI server with its `app`, which starts and stops it.

    The queue is in memory; the database has everything. The next start finds attempts that a stop or a crash left
    unfinished.

    `shared` is a Redis URL (or a `SharedState`) for several processes: their breakers, their rates per affiliate and the
    pace of platforms are one. Without it each process has its own.
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
        shared: SharedState | str | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._stop_seconds = checked_seconds("stop_seconds", stop_seconds, error=ReconcileConfigError)
        self._sharing = None if shared is None else Sharing(shared, clock)
        limiter = None
        if self._sharing is not None:
            fetcher = fetcher.sharing(self._sharing.state)
            limiter = self._sharing.limiter(rules.intake)
        # A connection for each worker, for the scheduler, and for a few concurrent requests.
        self.sessions = open_database(dsn, pool_size=workers + 5, answer_seconds=_ANSWER_SECONDS)
        self.queue = PriorityDelayQueue(queue_settings, clock)
        self.scheduler = RetryScheduler(self.sessions, self.queue, clock=clock)
        self.app: Starlette = create_app(
            self.sessions,
            self.queue,
            platforms=fetcher.platforms,
            rules=rules,
            clock=clock,
            lifespan=self._lifespan,
            limiter=limiter,
        )
        reconciler = Reconciler(fetcher, self.sessions, rules=rules, clock=clock)
        self._pool = WorkerPool(self.queue, reconciler, workers, session_factory=self.sessions)
        self._scheduling = threading.Thread(
            target=self.scheduler.run, args=(scheduler_seconds,), name="conquiet scheduler", daemon=True
        )
        self._stopping = threading.Lock()
        self._stop_by: float | None = None  # monotonic
        self._left: list[ReconciliationJob] = []
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

    def request_stop(self) -> None:
        """Begin to stop, without waiting: no more reports are accepted, and no attempt begins. Then call `stop`."""
        with self._stopping:
            if self._stop_by is None:
                self._stop_by = monotonic() + self._stop_seconds
            self.queue.shutdown()
            self.scheduler.stop()
            self._pool.request_stop()
            self._empty_queue()

    def stop(self) -> None:
        """Finish the running attempts, for at most `stop_seconds` since `request_stop`; begin no others.

        Those that wait in the queue are scheduled in the database, for other processes and the next start. What still runs
        at the end of the time is abandoned, and made again after the next start.
        """
        self.request_stop()
        if self._started:
            handing_back = threading.Thread(
                target=self._hand_back, args=(list(self._left),), name="conquiet hand back", daemon=True
            )
            handing_back.start()
            self._scheduling.join(self._time_left())
            has_ended = self._pool.join(self._time_left())
            handing_back.join(self._time_left())
            with self._stopping:
                self._empty_queue()  # what a worker put back in an outage
            self._say_what_is_left(has_ended)
        self.sessions.kw["bind"].dispose()
        if self._sharing is not None:
            self._sharing.close()

    def _time_left(self) -> float:
        return max(0.0, (self._stop_by or 0.0) - monotonic())

    def _empty_queue(self) -> None:
        self._left += [item.job for item in self.queue.items()]
        self.queue.purge()

    def _hand_back(self, jobs: list[ReconciliationJob]) -> None:
        if not jobs:
            return
        try:
            hand_back(self.sessions, jobs, utc(self._clock.time()))
        except ConquietError as error:
            _log.warning(
                "%d attempts in the queue could not be given to other processes: %s",
                len(jobs),
                redact(str(error)),
                extra={"event": "attempts_not_handed_back", "left": len(jobs)},
            )

    def _say_what_is_left(self, has_ended: bool) -> None:
        if self._left:
            _log.warning(
                "stopped with %d attempts in the queue: another process makes them, or the next start",
                len(self._left),
                extra={"event": "service_stopped", "left": len(self._left)},
            )
        if not has_ended:
            _log.warning(
                "stopped while attempts were running, after %g s: they are made again after the next start",
                self._stop_seconds,
                extra={"event": "service_cut_off"},
            )

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
