"""The job worker as flows: fetch, run, keep alive, commit. Threads, asyncio and the simulator run the same code.

    fetch ──► crew (a runner per place) ──► done ──► commit
                 └────────── keeper: a heartbeat for all of them every ttl / 3 ──────────┘

Jobs are claimed, kept alive and settled in batches; runners take them one by one. The parts exchange jobs only through
deques and signals, so that a job causes no thread switch or wake-up that it does not need.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeGuard

from conquiet.clock import Clock
from conquiet.errors import AbandonedThreadsError, StoreUnavailableError
from conquiet.flow import Beside, Cancelled, Child, Crew, Flow, Signal, Sleep, all_end, shielded
from conquiet.jobs.model import Job
from conquiet.jobs.operations import JobOperations
from conquiet.jobs.worker.committer import Committer, Held, WorkerCounts
from conquiet.jobs.worker.context import JobContext
from conquiet.jobs.worker.execution import Execution, Executor
from conquiet.jobs.worker.heartbeat import Heartbeat
from conquiet.jobs.worker.outage import Outage

__all__ = ["WorkerRun", "WorkerSettings"]

_log = logging.getLogger("conquiet.jobs")

_POLL_SECONDS = 2.0  # the fallback for a missed wake-up
_AHEAD_SECONDS = 0.2  # how much work to hold in advance, at the rate measured so far
_MOST_AHEAD = 1_000
_HANDLER_GRACE = 0.5  # for handlers to notice that they were interrupted
_STORE_GRACE = 5.0  # for a last answer of the store, when everything else has ended


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    queues: tuple[str, ...]
    name: str
    concurrency: int
    lease_ttl: float
    prefetch: int | None
    shutdown_timeout: float


class WorkerRun:
    """One run of a worker."""

    def __init__(
        self,
        operations: JobOperations,
        executor: Executor,
        settings: WorkerSettings,
        clock: Clock,
        random: Callable[[], float],
        *,
        opens_store: bool = False,
    ) -> None:
        self._operations = operations
        self._executor = executor
        self._settings = settings
        self._clock = clock
        self._outage = Outage(clock, random)
        self._opens_store = opens_store
        self.counts = WorkerCounts()
        self.stopping = Signal()
        self.stopping_hard = Signal()
        self._nudge = Signal()  # wakes the fetcher
        self._held: dict[str, Held] = {}  # by token
        self._crew = Crew("job runner", settings.concurrency, self._run_job, clock)
        self._crew.broken.add_waker(self._break_down)
        self._heartbeat = Heartbeat(operations, self._outage, settings.lease_ttl, self._leased, self._lose)
        self._committer = Committer(
            operations, self._held, self.counts, self._outage, clock, self._nudge, self.stopping_hard
        )

    def stop(self) -> None:
        """First call: drain. Second call: end without waiting. Safe in any thread and signal handler."""
        if self.stopping.is_set():
            self.stopping_hard.set()
        self.stopping.set()
        self._nudge.set()

    def running(self) -> list[JobContext]:
        return [held.context for held in list(self._held.values()) if held.started and held.ended is None]

    def run(self, until_idle: bool, wait_for_delayed: bool) -> Flow[WorkerCounts]:
        crew = self._crew
        keeper: Child[None] = yield Beside(crew.part(self._heartbeat.run()), name="job heartbeats")
        committer: Child[None] = yield Beside(crew.part(self._committer.run()), name="job commits")
        yield from crew.start()
        try:
            yield from self._fetch(until_idle, wait_for_delayed)
        finally:
            self.stopping.set()
            try:
                yield from shielded(self._finish(committer, keeper))
            except BaseException:  # interrupted again: end without waiting
                self.stopping_hard.set()
                yield from shielded(self._finish(committer, keeper))
                raise
        if crew.failure is not None:
            raise crew.failure
        return self.counts

    def _break_down(self) -> None:
        """End the worker because one part has failed: the other parts would hold their jobs in vain."""
        _log.error("the worker ends: %r", self._crew.failure)
        self.stopping.set()
        self._nudge.set()

    # -- fetch ---------------------------------------------------------------------------------------------------

    def _fetch(self, until_idle: bool, wait_for_delayed: bool) -> Flow[None]:
        attempt = 0
        opened = not self._opens_store
        settings = self._settings
        while True:
            self._nudge.clear()
            if self.stopping.is_set():  # checked after clear(), so that no stop() is missed
                if self._crew.failure is None:
                    _log.info(
                        "stopping: no more jobs are claimed; jobs still running: %d", len(self.running())
                    )
                return
            room = self._room()
            if room <= 0:
                yield Sleep(_POLL_SECONDS, self._nudge)
                continue
            try:
                if not opened:
                    yield from self._open()
                    opened = True
                jobs = yield from self._outage.watch(
                    self._operations.claim(settings.queues, room, settings.lease_ttl, settings.name)
                )
                if jobs:
                    self._take_in(jobs)
                elif until_idle and not self._held and (yield from self._nothing_left(wait_for_delayed)):
                    return
                else:
                    yield from self._wait_for_work()
                attempt = 0
            except StoreUnavailableError as error:
                yield from self._outage.pause(error, attempt, self.stopping)
                attempt += 1

    def _open(self) -> Flow[None]:
        backend = self._operations.backend
        try:
            yield from backend.open("never")
        except BaseException:
            yield from shielded(backend.close())
            self._operations.backend = backend.awaiting()  # a closed back end cannot be opened again
            raise

    def _wait_for_work(self) -> Flow[None]:
        return self._operations.backend.wait_for_work(self._settings.queues, _POLL_SECONDS, self._nudge)

    def _room(self) -> int:
        """Return how many jobs to claim now, enough to keep the runners busy with few large claims."""
        ahead = self._settings.prefetch
        if ahead is None:
            ahead = min(
                max(self._settings.concurrency, int(self._committer.rate * _AHEAD_SECONDS)), _MOST_AHEAD
            )
        room = self._settings.concurrency + ahead - len(self._held)
        return room if room * 2 >= ahead else 0

    def _take_in(self, jobs: list[Job]) -> None:
        self.counts.claimed += len(jobs)
        taken = []
        for job in jobs:
            assert job.lease is not None
            held = Held(self._executor.context(job))
            self._held[job.lease.token] = held
            taken.append(held)
        self._crew.add(taken)

    def _nothing_left(self, wait_for_delayed: bool) -> Flow[bool]:
        """Return whether no work is left. An empty claim does not prove that: it skips rows that are locked."""
        due = yield from self._operations.backend.next_due(self._settings.queues)
        return due is None or (due > 0 and not wait_for_delayed)

    # -- run -----------------------------------------------------------------------------------------------------

    def _run_job(self, held: Held) -> Flow[None]:
        if self.stopping.is_set():
            ended = Execution(held.context.job, given_back=True)
        elif held.lost:
            ended = Execution(held.context.job, lost=True)
        else:
            held.started = True
            ended = yield from self._executor.execute(held.context)
            if _ends_worker(ended.error):
                self._crew.break_down(ended.error)
        self._committer.add(held, ended)

    # -- keep alive ----------------------------------------------------------------------------------------------

    def _leased(self) -> list[Job]:
        return [item.context.job for item in list(self._held.values()) if not item.lost]

    def _lose(self, job: Job) -> None:
        """Handle a lost lease: another worker may run the job now.

        If the handler has not started, it will not start. If it has, it is notified, and its result is discarded.
        """
        assert job.lease is not None
        held = self._held.get(job.lease.token)
        if held is None or held.ended is not None or held.context.settling:
            return  # this worker has ended the lease itself, or is about to
        held.lost = True
        held.context.lease_lost.set()
        _log.warning("job %s: the lease was lost; its result will be discarded", job.id)

    # -- end -----------------------------------------------------------------------------------------------------

    def _finish(self, committer: Child[None], keeper: Child[None]) -> Flow[None]:
        """Release the jobs that have not started; let the others finish until `shutdown_timeout` or a second stop()."""
        deadline = self._clock.monotonic() + self._settings.shutdown_timeout
        for held in self._crew.empty_inbox():
            self._committer.add(held, Execution(held.context.job, given_back=True))
        yield from self._crew.finish(deadline, self.stopping_hard)
        self._executor.close()
        abandoned = yield from self._crew.cut_off(_HANDLER_GRACE)
        self.counts.abandoned += abandoned
        for _ in range(abandoned):
            _log.error("a handler did not end in time; its thread keeps running until the process ends")
            # Its lease lapses by itself; releasing it would let the job run twice at the same time.
        self._committer.no_more.set()
        yield from all_end([committer], self._clock, deadline, self.stopping_hard)
        self.stopping_hard.set()  # stop waiting for the end of an outage
        keeper.cancel()
        yield from all_end([committer, keeper], self._clock, self._clock.monotonic() + _STORE_GRACE)
        for part in (committer, keeper):
            if not part.done:
                part.abandon()
                _log.error(
                    "the job store has not answered; jobs not settled run again when their leases expire"
                )


def _ends_worker(error: BaseException | None) -> TypeGuard[BaseException]:
    """Return whether the worker must end: no thread is available to run a handler with a time limit, or a handler
    ended the program (by SystemExit, for example)."""
    return isinstance(error, AbandonedThreadsError) or not isinstance(error, Exception | Cancelled | None)
