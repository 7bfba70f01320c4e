"""Settles finished jobs in batches, and waits for the store during an outage."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from conquiet.clock import Clock
from conquiet.errors import StoreUnavailableError
from conquiet.flow import Flow, Signal, Sleep, shielded
from conquiet.jobs.model import Job, Nack, SettleResult
from conquiet.jobs.operations import JobOperations
from conquiet.jobs.worker.events import AttemptEvents
from conquiet.jobs.worker.execution import Execution
from conquiet.jobs.worker.held import Held
from conquiet.jobs.worker.intake import Intake
from conquiet.jobs.worker.outage import Outage

__all__ = ["Committer", "WorkerCounts"]

T = TypeVar("T")

# A worker without work for longer than this is idle, and the time does not count for its rate. A shorter wait is the
# duration of the next claim.
_IDLE_SECONDS = 0.1
_RATE_SECONDS = 0.02  # the rate is measured over this time: short, so that a fast worker soon claims more


@dataclass(slots=True)
class WorkerCounts:
    """The jobs that a worker has claimed, by outcome."""

    claimed: int = 0
    succeeded: int = 0
    failed: int = 0
    released: int = 0
    lost: int = 0  # the lease was lost: the result was discarded
    abandoned: int = 0  # still running on a thread when the worker ended


class Committer:
    """Settles finished jobs, and records which ones begin in their places before it lets them start.

    Only the committer removes jobs from `held` and counts their outcomes.
    """

    def __init__(
        self,
        operations: JobOperations,
        held: dict[str, Held],
        counts: WorkerCounts,
        outage: Outage,
        clock: Clock,
        settled: Signal,
        at_once: Signal,
        intake: Intake,
        events: AttemptEvents,
        start: Callable[[Sequence[Held]], None],
    ) -> None:
        self._operations = operations
        self._held = held
        self._counts = counts
        self._outage = outage
        self._clock = clock
        self._intake = intake
        self._start = start
        self._events = events
        self._done: deque[Held] = deque()
        self._settling: list[Held] = []  # the batch that is being settled
        self._has_done = Signal()
        self._one_settled = settled  # set after every batch: there is room for more jobs
        self._at_once = at_once  # once set, it no longer waits for the end of an outage
        self.no_more = Signal()  # once set, it ends when everything is settled
        self.rate = 0.0  # recent jobs per second
        self._discards: list[tuple[str, BaseException | None]] = []  # to be logged in one line

    def add(self, held: Held, ended: Execution) -> None:
        """Add a job that a runner has finished. Safe in any thread."""
        held.ended = ended
        self._done.append(held)
        self.wake()

    def wake(self) -> None:
        """Look for finished jobs, and for jobs that may begin."""
        # Waking is the expensive part. run() clears the signal before it takes the finished jobs, so none is missed.
        if not self._has_done.is_set():
            self._has_done.set()

    def results(self) -> int:
        """Return how many jobs have ended here and are not settled yet. What is given back is not among them.

        A job that is given back comes before those that a claim would bring now.
        """
        unsettled = [*list(self._done), *self._settling]
        return sum(held.ended is not None and not held.ended.given_back for held in unsettled)

    def run(self) -> Flow[None]:
        began, count = self._clock.monotonic(), 0
        while True:
            self._has_done.clear()
            batch = self._settling = [self._done.popleft() for _ in range(len(self._done))]
            begins, starts = self._intake.next()
            if starts:
                self._start(starts)
            if not batch and not begins:
                if self.no_more.is_set():
                    return
                idle, idle_from = not self._held, self._clock.monotonic()
                yield Sleep(None, self._has_done, self.no_more)
                now = self._clock.monotonic()
                if idle and now - idle_from > _IDLE_SECONDS:
                    began, count = now, 0
                continue
            try:
                yield from shielded(self._settle(batch, begins))
                self._log_discards()
                self._one_settled.set()
            finally:
                self._settling = []
                self._events.tell()  # while the next jobs are being claimed
            count += sum(held.started for held in batch)  # what was given back says nothing about speed
            seconds = self._clock.monotonic() - began
            if seconds > _RATE_SECONDS:
                self.rate = count / seconds
                began, count = self._clock.monotonic(), 0

    def _settle(self, batch: list[Held], begins: list[Held]) -> Flow[None]:
        """End the leases of a batch, let `begins` start. After an outage the results are settled, or refused as stale."""
        acks: list[Held] = []
        nacks: list[Held] = []
        unbegun: list[Held] = []
        releases: list[Held] = []
        later: list[Held] = []
        for held in batch:
            ended = held.ended
            assert ended is not None
            if ended.unknown:
                yield from self._settle_unknown(held)
            elif ended.settled:
                self._settled([held], "succeeded")
            elif ended.lost or held.lost:
                self._discarded([held], ended.error)
            elif ended.given_back:
                (unbegun if ended.unbegun else releases if ended.delay is None else later).append(held)
            elif ended.error is None:
                acks.append(held)
            else:
                nacks.append(held)
        operations = self._operations
        if begins:
            yield from self._ack_and_begin(acks, begins)
        else:
            yield from self._settle_all(acks, "succeeded", lambda: operations.ack_many(_jobs(acks)))
        failures = operations.failed(map(_nack, nacks))
        for held, (_, end) in zip(nacks, failures, strict=True):
            held.end = end
        yield from self._settle_all(nacks, "failed", lambda: operations.settle_failed(failures))
        yield from self._settle_all(releases, "released", lambda: operations.release_many(_jobs(releases)))
        yield from self._settle_all(unbegun, "released", lambda: operations.return_many(_jobs(unbegun)))
        yield from self._settle_all(later, "released", lambda: operations.defer_many(map(_deferred, later)))

    def _ack_and_begin(self, acks: list[Held], begins: list[Held]) -> Flow[None]:
        def ask() -> Flow[tuple[list[SettleResult], list[SettleResult]]]:
            return self._operations.ack_and_begin(_jobs(acks), _jobs(begins))

        try:
            (acked, begun), retried = yield from self._enduring(ask)
        except StoreUnavailableError as error:
            for held in begins:
                self._intake.ended(held)
            self._discarded([*acks, *begins], error)
            return
        started = []
        for held, result in zip(begins, begun, strict=True):
            held.begun = result.ok
            if result.ok:
                started.append(held)
            else:
                self._intake.ended(held)
                self._discarded([held], result.error)
        self._start(started)
        yield from self._account(acks, "succeeded", acked, retried)

    def _settle_all(
        self, batch: list[Held], outcome: str, settle: Callable[[], Flow[list[SettleResult]]]
    ) -> Flow[None]:
        if not batch:
            return
        try:
            results, retried = yield from self._enduring(settle)
        except StoreUnavailableError as error:
            self._discarded(batch, error)
            return
        yield from self._account(batch, outcome, results, retried)

    def _account(
        self, batch: list[Held], outcome: str, results: Sequence[SettleResult], retried: bool
    ) -> Flow[None]:
        try:
            if all(result.ok for result in results):  # the usual case
                self._settled(batch, outcome)
                return
            for held, result in zip(batch, results, strict=True):
                # The attempt that failed may have settled the job: its history shows that.
                if result.ok or (retried and (yield from self._is_settled(held, outcome))):
                    self._settled([held], outcome)
                else:
                    self._discarded([held], result.error)
        except StoreUnavailableError as error:
            self._discarded(batch, error)

    def _settle_unknown(self, held: Held) -> Flow[None]:
        """Find out whether its transaction was committed: only this lease can have written this attempt."""
        try:
            if (yield from self._is_settled(held, "succeeded")):
                self._settled([held], "succeeded")
            else:
                self._discarded([held], held.ended.error if held.ended else None)
        except StoreUnavailableError as error:
            self._discarded([held], error)

    def _is_settled(self, held: Held, outcome: str) -> Flow[bool]:
        settled, _ = yield from self._enduring(lambda: self._operations.is_settled(held.context.job, outcome))
        return settled

    def _enduring(self, ask: Callable[[], Flow[T]]) -> Flow[tuple[T, bool]]:
        """Ask until the store answers. Return the answer and whether it took more than one attempt.

        Repeating is safe if the outcome of the first attempt is unknown, because of the token. Raises
        StoreUnavailableError only when the worker must end.
        """
        attempt = 0
        while True:
            asked_at = self._clock.monotonic()
            try:
                answer = yield from self._outage.watch(ask())
                self._events.recorded(self._clock.monotonic() - asked_at)
                return answer, attempt > 0
            except StoreUnavailableError as error:
                if self._at_once.is_set() and attempt > 0:
                    raise
                yield from self._outage.pause(error, attempt, self._at_once)
                attempt += 1

    def _settled(self, batch: list[Held], outcome: str) -> None:
        settled = [held for held in batch if self._held.pop(held.context.token, None) is not None]
        setattr(self._counts, outcome, getattr(self._counts, outcome) + len(settled))
        self._events.settled(settled, outcome)

    def _discarded(self, batch: Sequence[Held], error: BaseException | None) -> None:
        lost = [held for held in batch if self._held.pop(held.context.token, None) is not None]
        self._counts.lost += len(lost)
        self._discards += [(held.context.job.id, error) for held in lost if not held.lost]
        self._events.lost(lost, error)

    def _log_discards(self) -> None:
        if self._discards:
            (_, error), ids = self._discards[0], [job_id for job_id, _ in self._discards]
            self._discards = []
            self._outage.discarded(ids, f"its result is discarded: {error}")


def _jobs(batch: list[Held]) -> list[Job]:
    return [held.context.job for held in batch]


def _nack(held: Held) -> Nack:
    ended = held.ended
    assert ended is not None
    return Nack(held.context.job, ended.error, ended.retryable, ended.category, ended.schedule)


def _deferred(held: Held) -> tuple[Nack, float]:
    assert held.ended is not None
    return _nack(held), held.ended.delay or 0.0
