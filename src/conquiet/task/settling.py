"""Telling the source, in batches, what became of its transactions; and what will never be settled."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from conquiet.flow import Call, Flow, Signal, Sleep
from conquiet.task.exceptions import SettleException, text_of, without_secrets
from conquiet.task.outcome import Ledger, Outcome, OutcomeStatus

__all__ = ["Settling"]

_LINGER = 0.002  # seconds to wait for more: one message to the source then serves many transactions
_MOST_WAITING = 1_000  # or ten batches: then nothing is fetched until the source has caught up


class Settling:
    """One loop's settler. It alone counts what was processed, once the source has been told."""

    def __init__(
        self,
        settle: Callable[..., Any] | None,
        on_outcome: Callable[[Outcome], Any] | None,
        ledger: Ledger,
        batch_size: int,
        room: Signal,
        break_down: Callable[[BaseException], None],
    ) -> None:
        self._settle = settle
        self._on_outcome = on_outcome
        self._ledger = ledger
        self._batch_size = batch_size
        self._room = room
        self._break_down = break_down
        self._done: deque[Outcome] = deque()
        self._in_hand: Sequence[Outcome] = ()
        self._has_done = Signal()
        self._full = Signal()  # no use in waiting for more
        self._left: list[Outcome] = []
        self._lock = threading.Lock()
        self._given_up = False
        self.no_more = Signal()
        self.wanted = settle is not None or on_outcome is not None

    def add(self, outcome: Outcome, *, nothing_else: bool) -> None:
        """It has been processed. `nothing_else`: there is nothing in flight that could come next."""
        self._done.append(outcome)
        if nothing_else or len(self._done) >= self._batch_size:
            self._full.set()
        if not self._has_done.is_set():
            self._has_done.set()

    def leave(self, outcome: Outcome) -> None:
        """It will not be settled by this loop."""
        self._left.append(outcome)

    def has_room(self) -> bool:
        return len(self._done) < max(_MOST_WAITING, 10 * self._batch_size)

    def run(self) -> Flow[None]:
        while True:
            yield Sleep(None, self._has_done, self.no_more)
            yield Sleep(_LINGER, self._full, self.no_more)
            self._full.clear()
            self._has_done.clear()
            batch = [self._done.popleft() for _ in range(len(self._done))]
            if batch:
                yield from self._tell(batch)
                self._room.set()
            elif self.no_more.is_set():
                return

    def give_up(self) -> None:
        """The source has not answered: what it was not told, or may not have heard, is unsettled."""
        with self._lock:
            self._given_up = True
            outcomes = [*self._in_hand, *self._done]
            self._done.clear()
        self._account(outcomes, {id(outcome) for outcome in outcomes})

    def release_left(self, release: Callable[..., Any] | None) -> Flow[BaseException | None]:
        """Tell the source, if it wants to know, what will never be settled; what went wrong doing so."""
        left, self._left = self._left, []
        failure: BaseException | None = None
        if release is not None and left:
            try:
                yield Call(release, left, shield=True)
            except Exception as error:  # noqa: BLE001 - a connector may raise anything
                failure = _failure("release", left, error)
        if self._on_outcome is not None:
            yield from self._show(left)
        return failure

    def _tell(self, batch: Sequence[Outcome]) -> Flow[None]:
        refused: set[int] = set()
        self._in_hand = batch
        if self._settle is not None:
            try:
                # Shielded: whether the source heard a message that was cut off could not be known.
                refused = {id(outcome) for outcome in (yield Call(self._settle, batch, shield=True)) or ()}
            except Exception as error:  # noqa: BLE001 - a connector may raise anything
                refused = {id(outcome) for outcome in batch}
                self._break_down(_failure("settle", batch, error))
        with self._lock:
            self._in_hand = ()
            if self._given_up:
                return  # answered too late: all of it was reported as unsettled
        outcomes = self._account(batch, refused)
        if self._on_outcome is not None:
            yield from self._show(outcomes)

    def _account(self, batch: Sequence[Outcome], refused: set[int]) -> list[Outcome]:
        outcomes = []
        for outcome in batch:
            if id(outcome) in refused:
                outcome = msgspec.structs.replace(outcome, status=OutcomeStatus.UNSETTLED)
                self.leave(outcome)
            outcomes.append(outcome)
        self._ledger.add(outcomes, processed=True)
        return outcomes

    def _show(self, outcomes: Sequence[Outcome]) -> Flow[None]:
        for outcome in outcomes:
            if self._on_outcome is None:
                return
            try:
                yield Call(self._on_outcome, outcome)
            except Exception as error:  # noqa: BLE001 - the user's own; it ends the loop
                self._on_outcome = None
                self._break_down(error)


def _failure(what: str, outcomes: Sequence[Outcome], error: Exception) -> SettleException:
    without_secrets(error)
    ids = ", ".join(outcome.transaction_id for outcome in outcomes[:3])
    more = f" and {len(outcomes) - 3} more" if len(outcomes) > 3 else ""
    failure = SettleException(
        f"the connector could not {what} {len(outcomes)} transactions ({ids}{more}), which are reported as "
        f"unsettled: {type(error).__name__}: {text_of(error)}"
    )
    failure.__cause__ = error
    return failure
