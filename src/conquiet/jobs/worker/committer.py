"""Settles finished jobs in batches, and waits for the store during an outage."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from conquiet.clock import Clock
from conquiet.errors import StoreUnavailableError
from conquiet.flow import Flow, Signal, Sleep, shielded
from conquiet.jobs.model import Job, Nack, SettleResult
from conquiet.jobs.operations import JobOperations
from conquiet.jobs.worker.context import JobContext
from conquiet.jobs.worker.execution import Execution
from conquiet.jobs.worker.outage import Outage

__all__ = ["Committer", "Held", "WorkerCounts"]

_log = logging.getLogger("conquiet.jobs")

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


@dataclass(eq=False, slots=True)
class Held:
    """A leased job, from its claim until it is settled."""

    context: JobContext
    started: bool = False
    lost: bool = False
    ended: Execution | None = field(default=None)


class Committer:
    """Settles finished jobs. Only the committer removes jobs from `held` and counts their outcomes."""

    def __init__(
        self,
        operations: JobOperations,
        held: dict[str, Held],
        counts: WorkerCounts,
        outage: Outage,
        clock: Clock,
        settled: Signal,
        at_once: Signal,
    ) -> None:
        self._operations = operations
        self._held = held
        self._counts = counts
        self._outage = outage
        self._clock = clock
        self._done: deque[Held] = deque()
        self._has_done = Signal()
        self._one_settled = settled  # set after every batch: there is room for more jobs
        self._at_once = at_once  # once set, it no longer waits for the end of an outage
        self.no_more = Signal()  # once set, it ends when everything is settled
        self.rate = 0.0  # recent jobs per second

    def add(self, held: Held, ended: Execution) -> None:
        """Add a job that a runner has finished. Safe in any thread."""
        held.ended = ended
        self._done.append(held)
        # Waking is the expensive part. run() clears the signal before it takes the finished jobs, so none is missed.
        if not self._has_done.is_set():
            self._has_done.set()

    def run(self) -> Flow[None]:
        began, count = self._clock.monotonic(), 0
        while True:
            self._has_done.clear()
            batch = [self._done.popleft() for _ in range(len(self._done))]
            if not batch:
                if self.no_more.is_set():
                    return
                idle, idle_from = not self._held, self._clock.monotonic()
                yield Sleep(None, self._has_done, self.no_more)
                now = self._clock.monotonic()
                if idle and now - idle_from > _IDLE_SECONDS:
                    began, count = now, 0
                continue
            yield from shielded(self._settle(batch))
            self._one_settled.set()
            count += len(batch)
            seconds = self._clock.monotonic() - began
            if seconds > _RATE_SECONDS:
                self.rate = count / seconds
                began, count = self._clock.monotonic(), 0

    def _settle(self, batch: list[Held]) -> Flow[None]:
        """End the leases of a batch. After an outage the results are settled, or refused as stale."""
        acks, nacks, releases = [], [], []
        for held in batch:
            ended = held.ended
            assert ended is not None
            if ended.unknown:
                yield from self._settle_unknown(held)
            elif ended.settled:
                self._settled([held], "succeeded")
            elif ended.lost or held.lost:
                self._discarded(held, ended.error)
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
        self, batch: list[Held], outcome: str, settle: Callable[[], Flow[list[SettleResult]]]
    ) -> Flow[None]:
        if not batch:
            return
        try:
            results, retried = yield from self._enduring(settle)
            if all(result.ok for result in results):  # the usual case
                self._settled(batch, outcome)
                return
            for held, result in zip(batch, results, strict=True):
                # The attempt that failed may have settled the job: its history shows that.
                if result.ok or (retried and (yield from self._is_settled(held, outcome))):
                    self._settled([held], outcome)
                else:
                    self._discarded(held, result.error)
        except StoreUnavailableError as error:
            for held in batch:
                self._discarded(held, error)

    def _settle_unknown(self, held: Held) -> Flow[None]:
        """Find out whether its transaction was committed: only this lease can have written this attempt."""
        try:
            if (yield from self._is_settled(held, "succeeded")):
                self._settled([held], "succeeded")
            else:
                self._discarded(held, held.ended.error if held.ended else None)
        except StoreUnavailableError as error:
            self._discarded(held, error)

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
            try:
                return (yield from self._outage.watch(ask())), attempt > 0
            except StoreUnavailableError as error:
                if self._at_once.is_set() and attempt > 0:
                    raise
                yield from self._outage.pause(error, attempt, self._at_once)
                attempt += 1

    def _settled(self, batch: list[Held], outcome: str) -> None:
        settled = sum(self._held.pop(held.context.token, None) is not None for held in batch)
        setattr(self._counts, outcome, getattr(self._counts, outcome) + settled)

    def _discarded(self, held: Held, error: BaseException | None) -> None:
        if self._held.pop(held.context.token, None) is not None:
            self._counts.lost += 1
            if not held.lost:
                _log.warning("job %s: its result is discarded: %s", held.context.job.id, error)


def _jobs(batch: list[Held]) -> list[Job]:
    return [held.context.job for held in batch]


def _nack(held: Held) -> Nack:
    ended = held.ended
    assert ended is not None
    return Nack(held.context.job, ended.error, ended.retryable, ended.category, ended.schedule)
