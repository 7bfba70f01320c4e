"""The job worker as flows: fetch, run, keep alive, commit. Threads, asyncio and the simulator run the same.

    fetch ──► crew (a runner per place) ──► done ──► commit
                 └────────── keeper: a heartbeat for all of them every ttl / 3 ──────────┘

Jobs are claimed, kept alive and settled in batches; a runner takes them one by one. Between the parts are deques
and signals only, so that a job costs no hop and no wake-up that it does not need.
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

_POLL_SECONDS = 2.0  # the fall-back where a wake-up was missed
_AHEAD_SECONDS = 0.2  # how much work to hold in advance, at the speed seen so far
_MOST_AHEAD = 1_000
_HANDLER_GRACE = 0.5  # for handlers to notice that they were cut off
_STORE_GRACE = 5.0  # for a last answer of the store, once nothing else is waited for


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
        """Once: drain. Twice: end at once. Any thread, any signal handler."""
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
            except BaseException:  # interrupted once more: end at once
                self.stopping_hard.set()
                yield from shielded(self._finish(committer, keeper))
                raise
        if crew.failure is not None:
            raise crew.failure
        return self.counts

    def _break_down(self) -> None:
        """If one part fails the worker ends: the other parts would hold their jobs for nothing."""
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
            if self.stopping.is_set():  # looked at after the clearing, so that no stop() is slept through
                if self._crew.failure is None:
                    _log.info("told to stop: nothing more is claimed; jobs that run: %d", len(self.running()))
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
            self._operations.backend = backend.awaiting()  # one that is closed stays so
            raise

    def _wait_for_work(self) -> Flow[None]:
        return self._operations.backend.wait_for_work(self._settings.queues, _POLL_SECONDS, self._nudge)

    def _room(self) -> int:
        """How many jobs to claim now: enough to keep the runners busy until the next claim, in few large claims."""
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
        """Whether that was all. An empty claim does not tell: it skips rows that somebody has locked."""
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
        """Somebody else may run it now. What has not begun will not begin; what has is told, its result discarded."""
        assert job.lease is not None
        held = self._held.get(job.lease.token)
        if held is None or held.ended is not None or held.context.settling:
            return  # its lease was ended, or is about to be, by this worker
        held.lost = True
        held.context.lease_lost.set()
        _log.warning("job %s: the lease was lost; its result will be discarded", job.id)

    # -- end -----------------------------------------------------------------------------------------------------

    def _finish(self, committer: Child[None], keeper: Child[None]) -> Flow[None]:
        """Give back what has not begun, let what has begun end, within `shutdown_timeout` or a second stop()."""
        deadline = self._clock.monotonic() + self._settings.shutdown_timeout
        for held in self._crew.empty_inbox():
            self._committer.add(held, Execution(held.context.job, given_back=True))
        yield from self._crew.finish(deadline, self.stopping_hard)
        self._executor.close()
        abandoned = yield from self._crew.cut_off(_HANDLER_GRACE)
        self.counts.abandoned += abandoned
        for _ in range(abandoned):
            _log.error("a handler did not end in time; its thread runs on until the process ends")
            # Its lease lapses by itself; releasing it would let the job run twice at once.
        self._committer.no_more.set()
        yield from all_end([committer], self._clock, deadline, self.stopping_hard)
        self.stopping_hard.set()  # an outage is not waited for any longer
        keeper.cancel()
        yield from all_end([committer, keeper], self._clock, self._clock.monotonic() + _STORE_GRACE)
        for part in (committer, keeper):
            if not part.done:
                part.abandon()
                _log.error("the job store has not answered; what is not settled runs again after its lease")


def _ends_worker(error: BaseException | None) -> TypeGuard[BaseException]:
    """No thread can be had to run anything within a limit, or a handler ended the program (SystemExit, say)."""
    return isinstance(error, AbandonedThreadsError) or not isinstance(error, Exception | Cancelled | None)
