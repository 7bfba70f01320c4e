"""Settlement: tells the connector, in batches, how its transactions ended and which will not be settled."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from conquiet.flow import Call, Flow, Signal, Sleep
from conquiet.task.exceptions import SettleException, text_of, without_secrets
from conquiet.task.outcome import Outcome, OutcomeStatus, ReportWriter

__all__ = ["Settlement"]

_LINGER = 0.002  # seconds to wait for more outcomes, so that one call of the connector settles many
_MOST_WAITING = (
    1_000  # outcomes, or ten batches: above that nothing is fetched until the connector has caught up
)


class Settlement:
    """The settlement of one loop. It counts processed transactions after it has told the connector."""

    def __init__(
        self,
        settle: Callable[..., Any] | None,
        on_outcome: Callable[[Outcome], Any] | None,
        writer: ReportWriter,
        batch_size: int,
        room: Signal,
        break_down: Callable[[BaseException], None],
    ) -> None:
        self._settle = settle
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
            outcomes = [*self._in_hand, *self._done]
            self._done.clear()
        self._left += self._account(outcomes, {id(outcome) for outcome in outcomes})

    def release_left(self, release: Callable[..., Any] | None) -> Flow[BaseException | None]:
        """Tell the connector, if it has `release`, what will not be settled, and return the failure of that call."""
        left, self._left = self._left, []
        failure: BaseException | None = None
        if release is not None and left:
            try:
                yield Call(release, left, shield=True)
            except Exception as error:  # noqa: BLE001 - a connector may raise anything
                failure = _failure("release", left, error)
        yield from self._show()
        return failure

    def _tell(self, batch: Sequence[Outcome]) -> Flow[None]:
        refused: set[int] = set()
        failure: SettleException | None = None
        if self._settle is not None:
            try:
                # Shielded: after an interrupted call it would not be known whether it took effect.
                refused = _refused(batch, (yield Call(self._settle, batch, shield=True)))
            except Exception as error:  # noqa: BLE001 - a connector may raise anything
                refused = {id(outcome) for outcome in batch}
                failure = _failure("settle", batch, error)
        with self._lock:
            if self._given_up:
                return  # too late: these outcomes were reported as unsettled
            self._in_hand = ()
        outcomes = self._account(batch, refused)
        if failure is not None:
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
        while self._unseen and self._on_outcome is not None:
            try:
                yield Call(self._on_outcome, self._unseen.popleft())
            except Exception as error:  # noqa: BLE001 - user code; it ends the loop
                self._on_outcome = None
                self._break_down(without_secrets(error))


def _refused(batch: Sequence[Outcome], answer: Any) -> set[int]:
    refused = {id(outcome) for outcome in answer or ()}
    if not refused <= {id(outcome) for outcome in batch}:
        raise TypeError(
            "settle must return the outcomes that it could not settle, from those it was given, or None"
        )
    return refused


def _failure(what: str, outcomes: Sequence[Outcome], error: Exception) -> SettleException:
    cause = without_secrets(error)
    ids = ", ".join(outcome.transaction_id for outcome in outcomes[:3])
    more = f" and {len(outcomes) - 3} more" if len(outcomes) > 3 else ""
    failure = SettleException(
        f"the connector could not {what} {len(outcomes)} transactions ({ids}{more}), which are reported as "
        f"unsettled: {type(error).__name__}: {text_of(error)}"
    )
    failure.__cause__ = cause
    return failure
