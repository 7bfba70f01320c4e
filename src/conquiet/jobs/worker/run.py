"""The job worker as flows: fetch, run, keep alive, commit. Threads, asyncio and the simulator run the same code.

    fetch ──► intake ──► crew (a runner per place) ──► done ──► commit
                 ▲                                               │
                 └── what begins next, recorded with the acks ───┘
    a heartbeat for all of them every ttl / 3

Jobs are claimed, kept alive and settled in batches; runners take them one by one. The parts exchange jobs only through
deques and signals, so that a job causes no thread switch or wake-up that it does not need.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from conquiet.clock import Clock
from conquiet.errors import AbandonedThreadsError, StoreUnavailableError
from conquiet.flow import THREAD_CALLS, Beside, Child, Crew, Flow, Signal, Sleep, all_end, shielded
from conquiet.jobs.model import Job
from conquiet.jobs.operations import JobOperations
from conquiet.jobs.turns import Turns
from conquiet.jobs.worker.committer import Committer, WorkerCounts
from conquiet.jobs.worker.context import JobContext
from conquiet.jobs.worker.events import AttemptEvents, AttemptLog, AttemptMetrics
from conquiet.jobs.worker.execution import Execution, Executor
from conquiet.jobs.worker.floor import Floor
from conquiet.jobs.worker.heartbeat import Heartbeat
from conquiet.jobs.worker.held import Held
from conquiet.jobs.worker.intake import Intake
from conquiet.jobs.worker.outage import Outage
from conquiet.jobs.worker.pace import AHEAD_SECONDS, Pace
from conquiet.jobs.worker.retention import Retention
from conquiet.observe import SafeLogger
from conquiet.redaction import described

__all__ = ["WorkerRun", "WorkerSettings"]

_log = SafeLogger("conquiet.jobs")

_POLL_SECONDS = 2.0  # the fallback for a missed wake-up
_HUNG_SECONDS = 1.0  # how often a worker whose threads all hang looks for one that has ended
_SUSPECT_DELAY = 2.0  # before a job is due again that could not run alone here
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
    ends_when_hung: bool = False


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
        floor: Floor | None = None,
        outage: Outage | None = None,
        retains: bool = True,
    ) -> None:
        self._operations = operations
        self._executor = executor
        self._settings = settings
        self._clock = clock
        self._outage = outage or Outage(clock, random)
        self._opens_store = opens_store
        self.counts = WorkerCounts()
        self.stopping = Signal()
        self.stopping_hard = Signal()
        self._nudge = Signal()  # wakes the fetcher
        self._hangs = False  # no thread is left for handlers with a time limit
        self._until_idle = False
        self._turns = Turns(settings.queues)
        self._held: dict[str, Held] = {}  # by token
        self._crew = Crew("job runner", settings.concurrency, self._run_job, clock)
        self._crew.broken.add_waker(self._break_down)
        self._crew_ended = Signal()
        self._heartbeat = Heartbeat(
            operations, self._outage, settings.lease_ttl, self._leased, self._lose, self._keep
        )
        self._store_open = Signal()
        self._retention = Retention(operations, self._outage, self._store_open)
        self._retains = retains  # of several lanes one does: pruning is not about queues
        floor = floor or Floor(clock)
        self._pace = Pace(settings.concurrency, clock)
        self._intake = Intake(
            settings.concurrency, settings.prefetch, floor, self._pace, clock, isolated=executor.isolated
        )
        self._events = AttemptEvents(
            AttemptLog(settings.name, clock), AttemptMetrics(executor.knows, self._running)
        )
        self._committer = Committer(
            operations,
            self._held,
            self.counts,
            self._outage,
            clock,
            self._nudge,
            self.stopping_hard,
            self._intake,
            self._events,
            self._start,
        )
        for wake in (self._committer.wake, self._nudge.set):
            floor.on_change(wake)

    def stop(self) -> None:
        """First call: drain. Second call: end without waiting. Safe in any thread and signal handler."""
        if self.stopping.is_set():
            self.stopping_hard.set()
        self.stopping.set()
        self._nudge.set()

    def running(self) -> list[JobContext]:
        return [held.context for held in self._running()]

    def _running(self) -> list[Held]:
        return [held for held in list(self._held.values()) if held.started and held.ended is None]

    def run(self, until_idle: bool, wait_for_delayed: bool) -> Flow[WorkerCounts]:
        self._until_idle = until_idle
        crew = self._crew
        keeper: Child[None] = yield Beside(crew.part(self._heartbeat.run()), name="job heartbeats")
        committer: Child[None] = yield Beside(crew.part(self._committer.run()), name="job commits")
        beside = [keeper]
        if self._retains and self._operations.retention is not None:
            beside.append((yield Beside(crew.part(self._retention.run()), name="job retention")))
        yield from crew.start()
        try:
            yield from self._fetch(until_idle, wait_for_delayed)
        finally:
            self.stopping.set()
            try:
                yield from shielded(self._finish(committer, *beside))
            except BaseException:  # interrupted again: end without waiting
                self.stopping_hard.set()
                yield from shielded(self._finish(committer, *beside))
                raise
        if crew.failure is not None:
            raise crew.failure
        return self.counts

    def _break_down(self) -> None:
        """End the worker because one part has failed: the other parts would hold their jobs in vain."""
        failure = self._crew.failure
        _log.error("the worker ends: %s", "" if failure is None else described(failure))
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
            self._give_back_overdue()
            if self._hangs:
                if THREAD_CALLS.is_full:
                    yield Sleep(_HUNG_SECONDS, self._nudge)
                    continue
                self._hangs = False
                _log.warning("handlers that hung have ended: jobs are claimed again")
            room, starts = self._intake.room(len(self._held), self._committer.results(), self._committer.rate)
            if room <= 0:
                yield Sleep(self._patience(), self._nudge)
                continue
            try:
                try:
                    if not opened:
                        yield from self._open()
                        opened = True
                    self._store_open.set()
                    sent_at = self._clock.monotonic()
                    jobs = yield from self._outage.watch(
                        self._operations.claim(
                            self._turns.queues, room, settings.lease_ttl, settings.name, starts
                        )
                    )
                except BaseException:  # cancellation included: the places kept for this claim are free again
                    self._intake.unclaimed(starts)
                    raise
                self._turns.served(jobs)
                self._take_in(jobs, starts, sent_at)
                if jobs:
                    pass
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
        except BaseException:  # cancellation included: nothing else would close it
            yield from shielded(backend.close())
            self._operations.backend = backend.awaiting()  # a closed back end cannot be opened again
            raise

    def _wait_for_work(self) -> Flow[None]:
        return self._operations.backend.wait_for_work(self._settings.queues, self._patience(), self._nudge)

    def _patience(self) -> float:
        return AHEAD_SECONDS if self._intake.holds() else _POLL_SECONDS

    def _take_in(self, jobs: list[Job], starts: int, sent_at: float) -> None:
        self.counts.claimed += len(jobs)
        taken = []
        executor, now = self._executor, self._clock.monotonic()
        until = sent_at + self._settings.lease_ttl
        for job in jobs:
            assert job.lease is not None
            held = Held(executor.context(job), executor.task(job), now, until, job.lease.begun)
            self._held[job.lease.token] = held
            taken.append(held)
        self._events.claimed(taken, now - sent_at)
        start, late = self._intake.add(taken, starts, self._committer.rate)
        self._give_back(late, unbegun=True)
        self._crew.add(start)
        if len(start) + len(late) < len(taken):
            self._committer.wake()

    def _give_back(self, jobs: Sequence[Held], *, unbegun: bool = False, delay: float | None = None) -> None:
        for held in jobs:
            ended = Execution(held.context.job, given_back=True, unbegun=unbegun, delay=delay)
            self._committer.add(held, ended)

    def _give_back_overdue(self) -> None:
        """Give back what has not begun in time, because the jobs before it take longer than expected."""
        if not self._intake.holds():
            return
        late = self._crew.waits(self._intake.is_overdue)
        if late:
            left = []
            for held in self._crew.empty_inbox():
                if held.begun:
                    left.append(held)
                else:
                    self._intake.ended(held)
                    self._give_back([held], unbegun=True)
            self._crew.add(left)
        self._give_back(self._intake.overdue(after_others=late), unbegun=True)
        self._give_back(self._intake.overdue_suspects(), delay=_SUSPECT_DELAY)

    def _start(self, jobs: Sequence[Held]) -> None:
        """Let jobs start that the committer has recorded as begun."""
        self._crew.add(jobs)
        if self._crew_ended.is_set():
            self._give_back(self._crew.empty_inbox())

    def _nothing_left(self, wait_for_delayed: bool) -> Flow[bool]:
        """Return whether no work is left. An empty claim does not prove that: it skips rows that are locked."""
        due = yield from self._operations.backend.next_due(self._settings.queues)
        return due is None or (due > 0 and not wait_for_delayed)

    # -- run -----------------------------------------------------------------------------------------------------

    def _run_job(self, held: Held) -> Flow[None]:
        now = self._clock.monotonic()
        if self.stopping.is_set():
            ended = Execution(held.context.job, given_back=True)
        elif held.lost:
            ended = Execution(held.context.job, lost=True)
        elif now >= held.until:
            # Another worker may have it: this process was paused or cut off. If not, nobody has to wait for it.
            _log.warning(
                "job %s: its lease lapsed before it could begin, so it does not", held.context.job.id
            )
            ended = Execution(held.context.job, given_back=True)
        else:
            held.began = now
            held.started = True
            self._intake.started(held)
            if self._events.tells_starts:
                self._events.started(held)
            ended = yield from self._executor.execute(held.context)
            held.seconds = self._clock.monotonic() - now
            self._pace.ended(held.task, held.seconds)
            if isinstance(ended.error, AbandonedThreadsError):
                self._hang(ended.error)
            elif ended.given_back and isinstance(ended.error, KeyboardInterrupt):
                self._crew.break_down(ended.error)
        self._intake.ended(held)
        if ended.abandoned:
            self._abandon(1)
        else:
            self._committer.add(held, ended)

    def _abandon(self, number: int) -> None:
        self.counts.abandoned += number
        for _ in range(number):
            _log.error("a handler did not end in time; its thread keeps running until the process ends")
            # Its lease lapses by itself; releasing it would let the job run twice at the same time.

    def _hang(self, error: AbandonedThreadsError) -> None:
        """Handlers that ignore their time limit hold all threads. What runs is finished; other workers take the rest."""
        if self._settings.ends_when_hung or self._until_idle:
            self._crew.break_down(error)
        elif not self._hangs:
            self._hangs = True
            _log.error("no job is claimed until a handler that hangs has ended: %s", error)

    # -- keep alive ----------------------------------------------------------------------------------------------

    def _leased(self) -> list[Job]:
        return [item.context.job for item in list(self._held.values()) if not item.lost]

    def _keep(self, job: Job, asked_at: float) -> None:
        assert job.lease is not None
        held = self._held.get(job.lease.token)
        if held is not None:
            held.until = asked_at + job.lease.ttl

    def _lose(self, jobs: Sequence[Job]) -> None:
        """Handle lost leases: another worker may run the jobs now.

        If a handler has not started, it will not start. If it has, it is notified, and its result is discarded.
        """
        lost = []
        for job in jobs:
            assert job.lease is not None
            held = self._held.get(job.lease.token)
            if held is None or held.ended is not None or held.context.settling:
                continue  # this worker has ended the lease itself, or is about to
            held.lost = True
            held.context.lease_lost.set()
            lost.append(job.id)
        self._outage.discarded(lost, "the lease was lost; its result will be discarded")

    # -- end -----------------------------------------------------------------------------------------------------

    def _finish(self, committer: Child[None], *beside: Child[None]) -> Flow[None]:
        """Release the jobs that have not started; let the others finish until `shutdown_timeout` or a second stop()."""
        deadline = self._clock.monotonic() + self._settings.shutdown_timeout
        self._give_back([*self._crew.empty_inbox(), *self._intake.empty()])
        yield from self._crew.finish(deadline, self.stopping_hard)
        self._executor.close()
        self._abandon((yield from self._crew.cut_off(_HANDLER_GRACE)))
        self._crew_ended.set()
        self._give_back([*self._crew.empty_inbox(), *self._intake.empty()])
        self._committer.no_more.set()
        yield from all_end([committer], self._clock, deadline, self.stopping_hard)
        self.stopping_hard.set()  # stop waiting for the end of an outage
        for part in beside:
            part.cancel()
        yield from all_end([committer, *beside], self._clock, self._clock.monotonic() + _STORE_GRACE)
        for part in (committer, *beside):
            if not part.done:
                part.abandon()
                _log.error(
                    "the job store has not answered; jobs not settled run again when their leases expire"
                )
        yield from self._operations.backend.rest()
