"""The job worker as flows: fetch, run, keep alive, commit. Threads, asyncio and the simulator run the same.

    fetch ──► inbox ──► runners (one per place) ──► done ──► commit
                 └────────── keeper: a heartbeat for all of them every ttl / 3 ──────────┘

Jobs are claimed, kept alive and settled in batches; a runner takes them one by one. Between the parts are deques
and signals only, so that a job costs no hop and no wake-up that it does not need.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from conquiet.clock import Clock
from conquiet.errors import AbandonedThreadsError, StaleLeaseError, StoreUnavailableError
from conquiet.flow import Beside, Cancelled, Child, Flow, Signal, Sleep, shielded
from conquiet.jobs.execution import Execution, Executor, JobContext
from conquiet.jobs.model import Job, Nack, SettleResult
from conquiet.jobs.operations import JobOperations
from conquiet.jobs.outage import Outage

__all__ = ["WorkerCounts", "WorkerSettings", "Working"]

_log = logging.getLogger("conquiet.jobs")

_POLL_SECONDS = 2.0  # the fall-back where a wake-up was missed
_AHEAD_SECONDS = 0.2  # how much work to hold in advance, at the speed seen so far
_MOST_AHEAD = 1_000


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    queues: tuple[str, ...]
    name: str
    concurrency: int
    lease_ttl: float
    prefetch: int | None
    shutdown_timeout: float


@dataclass(slots=True)
class WorkerCounts:
    """What became of the jobs that a worker claimed."""

    claimed: int = 0
    succeeded: int = 0
    failed: int = 0
    released: int = 0
    lost: int = 0  # the lease was gone: the result was discarded
    abandoned: int = 0  # still running on a thread when the worker ended


@dataclass(eq=False, slots=True)
class _Held:
    """A leased job, from its claim until it is settled."""

    context: JobContext
    started: bool = False
    lost: bool = False
    ended: Execution | None = field(default=None)


class Working:
    """One run of a worker."""

    def __init__(
        self,
        operations: JobOperations,
        executor: Executor,
        settings: WorkerSettings,
        clock: Clock,
        random: Callable[[], float],
    ) -> None:
        self._operations = operations
        self._executor = executor
        self._settings = settings
        self._clock = clock
        self._outage = Outage(clock, random)
        self.counts = WorkerCounts()
        self.stopping = Signal()
        self.stopping_hard = Signal()
        self._nudge = Signal()  # wakes the fetcher
        self._held: dict[str, _Held] = {}  # by token
        self._inbox: deque[_Held] = deque()
        self._has_work = Signal()
        self._done: deque[_Held] = deque()
        self._has_done = Signal()
        self._no_more = Signal()  # the runners end when the inbox is empty
        self._no_more_done = Signal()  # the committer ends when everything is settled
        self._failure: BaseException | None = None
        self._rate = 0.0

    def stop(self) -> None:
        """Once: drain. Twice: end at once. Any thread, any signal handler."""
        if self.stopping.is_set():
            self.stopping_hard.set()
        self.stopping.set()
        self._nudge.set()

    def running(self) -> list[JobContext]:
        return [held.context for held in list(self._held.values()) if held.started and held.ended is None]

    def run(self, until_idle: bool, wait_for_delayed: bool) -> Flow[WorkerCounts]:
        keeper: Child[None] = yield Beside(self._keep(), name="job heartbeats")
        committer: Child[None] = yield Beside(self._commit(), name="job commits")
        runners: list[Child[None]] = []
        for number in range(self._settings.concurrency):
            runner = yield Beside(self._run_jobs(), name=f"job runner {number}")
            runners += [runner]
        try:
            yield from self._fetch(until_idle, wait_for_delayed)
        finally:
            self.stopping.set()
            yield from shielded(self._finish(runners))
            self._no_more_done.set()
            yield Sleep(None, committer.finished, shield=True)
            keeper.cancel()
            yield Sleep(None, keeper.finished, shield=True)
        if self._failure is not None:
            raise self._failure
        return self.counts

    # -- fetch ---------------------------------------------------------------------------------------------------

    def _fetch(self, until_idle: bool, wait_for_delayed: bool) -> Flow[None]:
        attempt = 0
        while not self.stopping.is_set():
            self._nudge.clear()
            room = self._room()
            if room <= 0:
                yield Sleep(_POLL_SECONDS, self._nudge)
                continue
            try:
                jobs = yield from self._operations.claim(
                    self._settings.queues, room, self._settings.lease_ttl, self._settings.name
                )
                self._outage.over()
                attempt = 0
                if jobs:
                    self._take_in(jobs)
                elif not until_idle or self._held:
                    yield from self._operations.backend.wait_for_work(
                        self._settings.queues, _POLL_SECONDS, self._nudge
                    )
                elif not wait_for_delayed or (yield from self._nothing_left()):
                    return
                else:
                    yield from self._operations.backend.wait_for_work(
                        self._settings.queues, _POLL_SECONDS, self._nudge
                    )
            except StoreUnavailableError as error:
                yield from self._outage.pause(error, attempt, self.stopping)
                attempt += 1

    def _room(self) -> int:
        """How many jobs to claim now: enough to keep the runners busy until the next claim, in few large claims."""
        ahead = self._settings.prefetch
        if ahead is None:
            ahead = min(max(self._settings.concurrency, int(self._rate * _AHEAD_SECONDS)), _MOST_AHEAD)
        room = self._settings.concurrency + ahead - len(self._held)
        return room if room * 2 >= ahead else 0

    def _take_in(self, jobs: list[Job]) -> None:
        self.counts.claimed += len(jobs)
        for job in jobs:
            assert job.lease is not None
            held = _Held(JobContext(job, self._operations.backend, Signal()))
            self._held[job.lease.token] = held
            self._inbox.append(held)
        self._has_work.set()

    def _nothing_left(self) -> Flow[bool]:
        stats = yield from self._operations.stats(None)
        mine = [stats[name] for name in self._settings.queues if name in stats]
        return not any(s.ready + s.delayed + s.in_flight + s.expired for s in mine)

    # -- run -----------------------------------------------------------------------------------------------------

    def _run_jobs(self) -> Flow[None]:
        while True:
            held = self._next()
            if held is None:
                if self._no_more.is_set():
                    return
                yield Sleep(None, self._has_work, self._no_more)
                continue
            if held.lost:
                continue
            held.started = True
            try:
                held.ended = yield from self._executor.execute(held.context)
            except AbandonedThreadsError as error:
                # No thread can be had to run it within a limit: this worker is of no use any more.
                held.ended = Execution(held.context.job, error, given_back=True)
                self._failure = error
                self.stop()
            self._done.append(held)
            self._has_done.set()
            if held.ended.given_back and isinstance(held.ended.error, Cancelled):
                raise held.ended.error

    def _next(self) -> _Held | None:
        """The next job. A signal cleared by one runner may have been meant for another, so it is set again."""
        try:
            return self._inbox.popleft()
        except IndexError:
            self._has_work.clear()
        try:
            held = self._inbox.popleft()
        except IndexError:
            return None
        self._has_work.set()
        return held

    # -- keep alive ----------------------------------------------------------------------------------------------

    def _keep(self) -> Flow[None]:
        attempt = 0
        while True:
            yield Sleep(self._settings.lease_ttl / 3)
            held = [item for item in list(self._held.values()) if not item.lost]
            if not held:
                continue
            try:
                results = yield from self._operations.heartbeat_many([item.context.job for item in held])
                self._outage.over()
                attempt = 0
            except StoreUnavailableError as error:
                yield from self._outage.pause(error, min(attempt, 3))
                attempt += 1
                continue
            for item, result in zip(held, results, strict=True):
                if not result.ok and item.ended is None:
                    self._lose(item)

    def _lose(self, held: _Held) -> None:
        """Somebody else may run it now. What has not begun is dropped; what has is told, its result discarded."""
        held.lost = True
        held.context.lease_lost.set()
        if not held.started:
            self._forget(held)
            self.counts.lost += 1
        _log.warning("job %s: the lease was lost; its result will be discarded", held.context.job.id)

    def _forget(self, held: _Held) -> None:
        self._held.pop(held.context.token, None)
        self._nudge.set()

    # -- commit --------------------------------------------------------------------------------------------------

    def _commit(self) -> Flow[None]:
        began, count = self._clock.monotonic(), 0
        while True:
            self._has_done.clear()
            batch = [self._done.popleft() for _ in range(len(self._done))]
            if not batch:
                if self._no_more_done.is_set():
                    return
                yield Sleep(None, self._has_done, self._no_more_done)
                began, count = self._clock.monotonic(), 0  # idle time says nothing about speed
                continue
            yield from shielded(self._settle(batch))
            count += len(batch)
            seconds = self._clock.monotonic() - began
            if seconds > 0.05:
                self._rate = count / seconds
                began, count = self._clock.monotonic(), 0

    def _settle(self, batch: list[_Held]) -> Flow[None]:
        """End the leases of a batch; an outage is waited for: what was done is settled after it, or refused."""
        acks, nacks, releases = [], [], []
        for held in batch:
            ended = held.ended
            assert ended is not None
            if ended.settled or ended.lost:
                self._settled(held, not ended.lost, "succeeded", StaleLeaseError("in its own transaction"))
            elif ended.given_back:
                releases.append(held)
            elif ended.error is None:
                acks.append(held)
            else:
                nacks.append(held)
        operations = self._operations
        yield from self._settle_all(acks, "succeeded", lambda: operations.ack_many(_jobs(acks)))
        yield from self._settle_all(nacks, "failed", lambda: operations.nack_many(map(_nack, nacks)))
        yield from self._settle_all(releases, "released", lambda: operations.release_many(_jobs(releases)))

    def _settle_all(
        self, batch: list[_Held], outcome: str, settle: Callable[[], Flow[list[SettleResult]]]
    ) -> Flow[None]:
        if not batch:
            return
        attempt = 0
        while True:
            try:
                results = yield from settle()
                break
            except StoreUnavailableError as error:
                # Whether it happened may be unknown: settling again is safe, the token decides, and below an
                # answer of "stale" is checked against the job's own history.
                yield from self._outage.pause(error, attempt)
                attempt += 1
        self._outage.over()
        for held, result in zip(batch, results, strict=True):
            ok = result.ok or (
                attempt > 0 and (yield from self._operations.is_settled(held.context.job, outcome))
            )
            self._settled(held, ok, outcome, result.error)

    def _settled(self, held: _Held, ok: bool, outcome: str, error: Exception | None) -> None:
        if ok:
            setattr(self.counts, outcome, getattr(self.counts, outcome) + 1)
        else:
            self.counts.lost += 1
            if not held.lost:
                _log.warning("job %s: its result is discarded: %s", held.context.job.id, error)
        self._forget(held)

    # -- end -----------------------------------------------------------------------------------------------------

    def _finish(self, runners: list[Child[None]]) -> Flow[None]:
        """Give back what has not begun, let what has begun end, within `shutdown_timeout` or a second stop()."""
        unstarted = [self._inbox.popleft() for _ in range(len(self._inbox))]
        for held in unstarted:
            held.ended = Execution(held.context.job, given_back=True)
            self._done.append(held)
        self._has_done.set()
        self._no_more.set()
        deadline = self._clock.monotonic() + self._settings.shutdown_timeout
        for runner in runners:
            left = max(deadline - self._clock.monotonic(), 0.0)
            if not runner.done:
                yield Sleep(left, runner.finished, self.stopping_hard)
        late = [runner for runner in runners if not runner.done]
        for runner in late:
            runner.cancel()  # a coroutine ends by that; a thread does not
        self._executor.close()
        for runner in late:
            yield Sleep(0.5, runner.finished)
            if not runner.done:
                runner.abandon()
                self.counts.abandoned += 1
                _log.error("a handler did not end in time; its thread runs on until the process ends")
        for held in list(self._held.values()):
            if held.started and held.ended is None:
                self._forget(held)  # its lease lapses by itself; releasing it would let it run twice at once


def _jobs(batch: list[_Held]) -> list[Job]:
    return [held.context.job for held in batch]


def _nack(held: _Held) -> Nack:
    ended = held.ended
    assert ended is not None
    return Nack(held.context.job, ended.error, category=ended.category)
