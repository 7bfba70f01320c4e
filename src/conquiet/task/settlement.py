"""Settlement: tells the connector, in batches, how its transactions ended and which will not be settled."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from conquiet.flow import Call, Cancelled, Flow, Signal, Sleep
from conquiet.observe import SafeLogger
from conquiet.task.exceptions import EngineError, SettleException
from conquiet.task.failures import is_a, presentable, text_of
from conquiet.task.outcome import Outcome, OutcomeStatus, ReportWriter

__all__ = ["Settlement"]

_log = SafeLogger("conquiet.engine")

_LINGER = 0.002  # seconds to wait for more outcomes, so that one call of the connector settles many
_MOST_WAITING = (
    1_000  # outcomes, or ten batches: above that nothing is fetched until the connector has caught up
)


_SHOWN_AT_A_TIME = 16  # outcomes, before others may run: on_outcome may be a coroutine that never waits


class Settlement:
    """The settlement of one loop. It counts processed transactions after it has told the connector."""

    def __init__(
        self,
        settle: Callable[..., Any] | None,
        release: Callable[..., Any] | None,
        on_outcome: Callable[[Outcome], Any] | None,
        writer: ReportWriter,
        batch_size: int,
        room: Signal,
        break_down: Callable[[BaseException], None],
    ) -> None:
        self._settle = settle
        self._release = release
        self._on_outcome = on_outcome
        self._writer = writer
        self._batch_size = batch_size
        self._room = room
        self._break_down = break_down
        self._done: deque[Outcome] = deque()
        self._in_hand: Sequence[Outcome] = ()
        self._has_done = Signal()
        self._full = Signal()  # a batch is complete: do not wait for more
        self._left: list[Outcome] = []
        self._unseen: deque[Outcome] = deque()  # for on_outcome
        self._lock = threading.Lock()
        self._given_up = False
        self.no_more = Signal()
        self.wanted = settle is not None or on_outcome is not None

    def add(self, outcome: Outcome, *, nothing_else: bool) -> None:
        """Add the outcome of a processed transaction. `nothing_else`: no other transaction is in flight."""
        self._done.append(outcome)
        if nothing_else or len(self._done) >= self._batch_size:
            self._full.set()
        if not self._has_done.is_set():
            self._has_done.set()

    def leave(self, outcome: Outcome) -> None:
        """Add an outcome that this loop will not settle, and has not asked the connector to settle."""
        self._left.append(outcome)
        self._unseen.append(outcome)

    @property
    def left(self) -> int:
        """How many the connector has not been told about."""
        return len(self._left)

    def has_room(self) -> bool:
        return len(self._done) < max(_MOST_WAITING, 10 * self._batch_size)

    def run(self) -> Flow[None]:
        while True:
            yield Sleep(None, self._has_done, self.no_more)
            yield Sleep(_LINGER, self._full, self.no_more)
            self._full.clear()
            self._has_done.clear()
            with self._lock:
                if self._given_up:
                    return
                batch = [self._done.popleft() for _ in range(len(self._done))]
                self._in_hand = batch
            if batch:
                yield from self._tell(batch)
                self._room.set()
            elif self.no_more.is_set():
                return

    def give_up(self) -> None:
        """At the end, report outcomes as unsettled that the connector was not told or may not have received."""
        with self._lock:
            self._given_up = True
            in_hand, self._in_hand = self._in_hand, ()
            outcomes = [*in_hand, *self._done]
            self._done.clear()
        if in_hand and self._settle is not None:
            self._writer.settle_unknown(in_hand)
            _log.error(
                "the connector did not answer to settle %d transactions in time (%s): whether they are settled is unknown",
                len(in_hand),
                _ids(in_hand),
            )
        self._left += self._account(outcomes, {id(outcome) for outcome in outcomes})

    def release_left(self, late: Sequence[Outcome]) -> Flow[BaseException | None]:
        """Tell the connector what will not be settled, and return the failure of that call."""
        left, self._left = self._left, []
        failure = yield from self.release([*left, *late])
        yield from self._show()
        return failure

    def release(self, outcomes: Sequence[Outcome]) -> Flow[SettleException | None]:
        """Give transactions back to the connector, if it has `release`, and return the failure of that call."""
        if self._release is None or not outcomes:
            return None
        call = Call(self._release, outcomes, shield=True)
        try:
            yield call
        except (Exception, Cancelled) as error:
            if call.interrupted and is_a(error, Cancelled):
                raise
            return _failure("release", outcomes, error)
        return None

    def _tell(self, batch: Sequence[Outcome]) -> Flow[None]:
        refused: set[int] = set()
        failure: SettleException | None = None
        if self._settle is not None:
            # Shielded: after an interrupted call it would not be known whether it took effect.
            call = Call(self._settle, batch, shield=True)
            try:
                refused = _refused(batch, (yield call))
            except (Exception, Cancelled) as error:
                if call.interrupted and is_a(error, Cancelled):
                    raise
                refused = {id(outcome) for outcome in batch}
                failure = _failure("settle", batch, error)
        with self._lock:
            if self._given_up:
                return  # too late: these outcomes were reported as unsettled
            self._in_hand = ()
        outcomes = self._account(batch, refused)
        if failure is not None:
            self._writer.settle_unknown(batch)
            self._left += outcomes
            self._break_down(failure)
        yield from self._show()

    def _account(self, batch: Sequence[Outcome], refused: set[int]) -> list[Outcome]:
        outcomes = []
        for outcome in batch:
            if id(outcome) in refused:
                outcome = msgspec.structs.replace(outcome, status=OutcomeStatus.UNSETTLED)
            outcomes.append(outcome)
        self._writer.add(outcomes, processed=True)
        if self._on_outcome is not None:
            self._unseen += outcomes
        return outcomes

    def _show(self) -> Flow[None]:
        shown = 0
        while self._unseen and self._on_outcome is not None:
            call = Call(self._on_outcome, self._unseen.popleft())
            try:
                yield call
            except (Exception, Cancelled) as error:
                if call.interrupted and is_a(error, Cancelled):
                    raise
                self._on_outcome = None
                self._break_down(_callback_failure(error))
            shown += 1
            if shown % _SHOWN_AT_A_TIME == 0:
                yield Sleep(0)


def _refused(batch: Sequence[Outcome], answer: Any) -> set[int]:
    refused = {id(outcome) for outcome in answer or ()}
    if not refused <= {id(outcome) for outcome in batch}:
        raise TypeError(
            "settle must return the outcomes that it could not settle, from those it was given, or None"
        )
    return refused


def _callback_failure(error: BaseException) -> BaseException:
    if not is_a(error, Cancelled):
        return presentable(error)
    # As itself it would look as if the caller of the loop had been cancelled.
    failure = EngineError("on_outcome raised CancelledError, but nobody cancelled the loop")
    failure.__cause__ = error
    return failure


def _failure(what: str, outcomes: Sequence[Outcome], error: BaseException) -> SettleException:
    failure = SettleException(
        f"the connector could not {what} {len(outcomes)} transactions ({_ids(outcomes)}), which are reported as "
        f"unsettled: {type(error).__name__}: {text_of(error)}"
    )
    failure.__cause__ = presentable(error)
    return failure


def _ids(outcomes: Sequence[Outcome]) -> str:
    more = f" and {len(outcomes) - 3} more" if len(outcomes) > 3 else ""
    return ", ".join(outcome.transaction_id for outcome in outcomes[:3]) + more
