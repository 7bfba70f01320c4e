"""The consume loop as a flow: fetch, distribute, settle, and an end that accounts for everything.

    fetch ──► crew (a runner per place, each with one lifecycle at a time) ──► settle ──► report

The next batch is fetched when a runner is free. This module is independent of threads and asyncio, which are in
`mixins/consumer.py`.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any

from conquiet.clock import Clock
from conquiet.errors import AbandonedThreadsError
from conquiet.flow import Beside, Cancelled, Child, Crew, Flow, Signal, Sleep, ThreadCalls, all_end, shielded
from conquiet.observe import EngineMetrics, SafeLogger
from conquiet.redaction import annotate, described
from conquiet.task.exceptions import EngineError, FetchException
from conquiet.task.failures import is_a
from conquiet.task.fetch import Fetch, LoopTimeout
from conquiet.task.late_batches import LateBatches
from conquiet.task.lifecycle import Lifecycle
from conquiet.task.mixins.policies import ConsumerPolicy
from conquiet.task.outcome import ConsumeReport, Outcome, ReportWriter, StopReason, left_over
from conquiet.task.settlement import Settlement
from conquiet.task.transaction import Transaction
from conquiet.task.transaction_run import TransactionRun

__all__ = ["ConsumeLoop", "Source"]

_log = SafeLogger("conquiet.engine")

_GRACE = 0.5  # seconds that cut-off runners get to end
_SETTLE_GRACE = 5.0  # seconds for the last settle call when the loop's time is up


@dataclass(frozen=True, slots=True)
class Source:
    """The methods of a connector of either variant."""

    fetch: Callable[..., Any]
    settle: Callable[..., Any] | None
    release: Callable[..., Any] | None


class _Fetched:
    """One transaction fetched by this loop; an id fetched twice gives two."""

    __slots__ = ("run", "transaction")

    def __init__(self, transaction: Transaction) -> None:
        self.transaction = transaction
        self.run: TransactionRun | None = None

    def left(self, error: BaseException | None = None) -> Outcome:
        return left_over(self.transaction, 0 if self.run is None else self.run.counted, error)


class ConsumeLoop:
    """One run of the engine."""

    def __init__(
        self,
        task: Any,
        source: Source,
        policy: ConsumerPolicy,
        clock: Clock,
        calls: ThreadCalls,
        on_outcome: Callable[[Outcome], Any] | None,
    ) -> None:
        self._policy = policy.loop
        self._steps = policy.steps
        self._source = source
        self._clock = clock
        self._calls = calls
        self._cycle = Lifecycle(task, policy, clock)
        self._context = copy_context()
        self._writer = ReportWriter()
        self._ending = Signal()  # stop(), or a failure: nothing new is started
        self._room = Signal()  # a runner is free, or may be
        self._lock = threading.Lock()
        self._open: dict[
            _Fetched, None
        ] = {}  # fetched and not finished; the code that removes one accounts for it
        self._running: dict[str, deque[_Fetched] | None] = {}  # by id: those that wait for the one that runs
        self._crew: Crew[_Fetched] = Crew(
            "transaction runner", self._policy.concurrency.value, self._process, clock
        )
        self._crew.broken.add_waker(self.stop)
        self._metrics = EngineMetrics(self._cycle.tracing.task_name, calls, self._crew)
        self._settlement = Settlement(
            source.settle,
            source.release,
            on_outcome,
            self._writer,
            self._policy.batch.size,
            self._room,
            self._crew.break_down,
        )
        self._late = LateBatches(source.release, self._room.set)

    def stop(self) -> None:
        """Stop fetching; transactions that have begun are finished and settled. Safe from any thread."""
        self._ending.set()
        self._room.set()

    def run(self) -> Flow[ConsumeReport]:
        spans = self._cycle.tracing.spans
        if spans is None:
            return (yield from self._run())
        span = spans.start(
            "consume_transactions", self._context, {"conquiet.task": self._cycle.tracing.task_name}
        )
        try:
            return (yield from self._run())
        except BaseException as error:
            self._cycle.tracing.fail(span, error)
            raise
        finally:
            spans.end(span)

    def _run(self) -> Flow[ConsumeReport]:
        timeout = self._policy.timeout
        deadline = None if timeout is None else self._clock.monotonic() + timeout
        settler: Child[None] | None = None
        if self._settlement.wanted:
            settler = yield Beside(self._crew.part(self._settlement.run()), name="transaction settling")
        failure: BaseException | None = None
        again: BaseException | None = None
        not_released: BaseException | None = None
        reason = StopReason.ERROR
        try:
            try:
                reason = yield from self._consume(deadline)
            except (EngineError, AbandonedThreadsError) as error:
                failure = error  # transactions fetched before are finished
            reason = yield from self._drain(reason, deadline, settler)
        except BaseException as error:  # noqa: BLE001 - raised when everything is accounted for
            failure = error
        try:
            not_released = yield from shielded(self._end(settler))
        except BaseException as error:  # noqa: BLE001 - a second Ctrl-C: leave without waiting for anything
            again = error
            self._leave_now(settler)
        return self._reported(reason, failure, again, self._crew.failure, not_released)

    def _reported(self, reason: StopReason, *failures: BaseException | None) -> ConsumeReport:
        report = self._writer.report
        report.abandoned_threads += self._calls.abandoned
        found = [failure for failure in failures if failure is not None]
        # Ctrl-C comes first: errors that it caused must not hide it.
        found.sort(key=lambda failure: is_a(failure, Exception))
        failure = found[0] if found else None
        for other in found[1:]:
            if other is not failure:
                annotate(found[0], f"and besides: {described(other)}")
        report.stop_reason = reason if failure is None else StopReason.ERROR
        self._metrics.publish(report)
        if failure is None:
            return report
        if is_a(failure, EngineError, AbandonedThreadsError):
            failure.report = report  # type: ignore[attr-defined]
        annotate(failure, f"the consume loop ended with it: {report}")
        raise failure

    # -- fetch and distribute ------------------------------------------------------------------------------------

    def _consume(self, deadline: float | None) -> Flow[StopReason]:
        policy, report = self._policy, self._writer.report
        fetch = Fetch(
            self._cycle.tracing,
            self._source.fetch,
            self._steps.fetch,
            self._clock,
            self._context,
            deadline,
            self._ending,
            self._late.add,
        )
        empties = 0
        try:
            while True:
                yield from self._wait_for_room(deadline)
                if self._ending.is_set():
                    return StopReason.STOPPED
                size = policy.batch.size
                if policy.limit is not None:
                    size = min(size, policy.limit - report.fetched)
                    if size <= 0:
                        return StopReason.LIMIT
                batch = yield from fetch.batch(size)
                self._metrics.publish(report)
                if batch:
                    empties = 0
                    yield from self._hand_out(batch)
                elif batch is not None and not policy.streaming:
                    return StopReason.DRAINED
                elif batch is not None:
                    yield from self._wait(policy.empty_queue.delay(empties), deadline)
                    empties += 1
        except LoopTimeout:
            return StopReason.LOOP_TIMEOUT
        except FetchException:
            self._leave(self._taken_in(fetch.unusable))
            raise

    def _hand_out(self, batch: Sequence[Transaction]) -> Flow[None]:
        fetched = self._taken_in(batch)
        if self._ending.is_set():  # stopped while it was fetched
            self._leave(fetched)
        else:
            self._crew.add(fetched)
            yield from self._crew.grow()

    def _taken_in(self, batch: Sequence[Transaction]) -> list[_Fetched]:
        fetched = [_Fetched(transaction) for transaction in batch]
        self._writer.fetched(len(fetched))
        with self._lock:
            self._open.update(dict.fromkeys(fetched))
        return fetched

    def _wait_for_room(self, deadline: float | None) -> Flow[None]:
        while True:
            self._room.clear()
            if self._late.waiting and (failure := (yield from self._settlement.release(self._late.take()))):
                raise failure
            if self._ending.is_set() or (
                len(self._open) < self._policy.concurrency.value and self._settlement.has_room()
            ):
                return
            yield from self._wait(None, deadline, self._room)

    def _wait(self, seconds: float | None, deadline: float | None, *wake: Signal) -> Flow[None]:
        """Sleep, but not past the loop's deadline, and not once the loop is ending."""
        left = None if deadline is None else deadline - self._clock.monotonic()
        loop_ends_first = left is not None and (seconds is None or left <= seconds)
        woken = yield Sleep(left if loop_ends_first else seconds, self._ending, *wake)
        if loop_ends_first and not woken:
            raise LoopTimeout

    # -- run -----------------------------------------------------------------------------------------------------

    def _process(self, fetched: _Fetched) -> Flow[None]:
        """Run one transaction, then those with the same id that arrived meanwhile: never two of them concurrently."""
        name = fetched.transaction.id
        with self._lock:
            if name in self._running:
                waiting = self._running[name]
                if waiting is None:
                    self._running[name] = waiting = deque()
                waiting.append(fetched)
                return
            self._running[name] = None
        following: _Fetched | None = fetched
        while following is not None:
            if self._ending.is_set():
                self._finished(following, following.left(), processed=False)
            else:
                yield from self._run_one(following)
            with self._lock:
                waiting = self._running[name]
                following = waiting.popleft() if waiting else None
                if following is None:
                    del self._running[name]

    def _run_one(self, fetched: _Fetched) -> Flow[None]:
        fetched.run = self._cycle.begin(fetched.transaction, self._context.copy())
        try:
            outcome = yield from fetched.run.outcome()
        except BaseException as error:
            if not isinstance(error, Cancelled):
                self._crew.break_down(
                    error
                )  # before the place is free: otherwise one more batch could be fetched
            self._finished(fetched, fetched.left(error), processed=False)
            if isinstance(error, Cancelled):
                raise
            return
        if self._calls.abandoned > self._policy.max_abandoned_threads:
            self._crew.break_down(
                AbandonedThreadsError(
                    f"{self._calls.abandoned} calls ran past their time limits and still hold their threads; "
                    f"max_abandoned_threads is {self._policy.max_abandoned_threads}. Threads cannot be stopped: "
                    "restart the process, and give the calls their own time limits"
                )
            )
        self._finished(fetched, outcome, processed=True)

    def _finished(self, fetched: _Fetched, outcome: Outcome, *, processed: bool) -> None:
        with self._lock:  # one step: at the end, each place is searched once
            if fetched not in self._open:
                return  # cut off, and already reported: this outcome no longer counts
            del self._open[fetched]
            left = len(self._open)
            if processed and self._settlement.wanted:
                self._settlement.add(outcome, nothing_else=left == 0)
            else:
                self._writer.add((outcome,), processed=processed)
                if not processed:
                    self._settlement.leave(outcome)
        if left < self._policy.concurrency.value and not self._room.is_set():
            self._room.set()

    def _leave(self, fetched: Sequence[_Fetched]) -> None:
        """Report transactions as unsettled that were not begun or not finished."""
        for one in fetched:
            self._finished(one, one.left(), processed=False)

    # -- end -----------------------------------------------------------------------------------------------------

    def _drain(
        self, reason: StopReason, deadline: float | None, settler: Child[None] | None
    ) -> Flow[StopReason]:
        """Finish and settle fetched transactions (after `stop()`, those that have begun), within the loop's time."""
        if reason is StopReason.LOOP_TIMEOUT:
            return reason
        ended = yield from self._crew.finish(deadline)
        if ended and settler is not None:
            self._settlement.no_more.set()
            yield from all_end([settler], self._clock, deadline)
            ended = settler.done
        if not ended:
            return StopReason.LOOP_TIMEOUT
        return StopReason.STOPPED if self._ending.is_set() else reason

    def _end(self, settler: Child[None] | None) -> Flow[BaseException | None]:
        """Cut off running transactions, settle finished ones, release the rest; return the failure of the release."""
        self._ending.set()
        self._writer.report.abandoned_threads += yield from self._crew.cut_off(_GRACE)
        self._leave_open()
        if settler is not None:
            self._settlement.no_more.set()
            yield from all_end([settler], self._clock, self._clock.monotonic() + _SETTLE_GRACE)
            self._give_up(settler)
        return (yield from self._settlement.release_left(self._late.close()))

    def _leave_open(self) -> None:
        with self._lock:
            left = list(self._open)
        self._leave(left)

    def _give_up(self, settler: Child[None]) -> None:
        if not settler.done:
            settler.cancel()
            settler.abandon()
        self._settlement.give_up()  # no effect if it has ended by itself

    def _leave_now(self, settler: Child[None] | None) -> None:
        """Account for everything without waiting. What was not released goes back when the source takes it back."""
        self._writer.report.abandoned_threads += self._crew.abandon()
        self._leave_open()
        if settler is not None:
            self._give_up(settler)
        _log.warning(
            "interrupted again while the loop was ending: %d transactions were not given back to the connector",
            self._settlement.left + len(self._late.close()),
        )
