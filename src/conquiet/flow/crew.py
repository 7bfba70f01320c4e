"""A crew: a fixed number of flows (runners) that take items from one inbox, and their orderly shutdown."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar

from conquiet.clock import Clock
from conquiet.flow.effects import Beside, Cancelled, Child, Flow, Signal, Sleep
from conquiet.redaction import annotate, described

__all__ = ["Crew", "all_end"]

Item = TypeVar("Item")

_log = logging.getLogger("conquiet.flow")


class Crew(Generic[Item]):
    """`size` runners, each of which runs `work(item)` for one item at a time. An exception in `work` ends the crew.

    Items are added in bulk. A runner that takes an item while there are more wakes one other runner, which wakes the
    next. If the work never waits, a single runner empties the inbox and no other is woken.
    """

    def __init__(self, name: str, size: int, work: Callable[[Item], Flow[None]], clock: Clock) -> None:
        self._name = name
        self._size = size
        self._work = work
        self._clock = clock
        self._lock = threading.Lock()
        self._inbox: deque[Item] = deque()
        self._idle: deque[Signal] = deque()
        self._called: Signal | None = None  # the runner that was woken and has not taken its item yet
        self._no_more = Signal()
        self._is_cut_off = False
        self._runners: list[Child[None]] = []
        self.failure: BaseException | None = None
        self.broken = Signal()  # set together with `failure`; the leader of the crew then ends it

    def start(self) -> Flow[None]:
        """Start all runners."""
        yield from self._start(self._size)

    def grow(self) -> Flow[None]:
        """Start as many runners as there are items for which none is idle. (A crew of 1,000 may have one item.)"""
        with self._lock:
            wanted = len(self._inbox) - len(self._idle) - (self._called is not None)
        yield from self._start(min(self._size - len(self._runners), wanted))

    def _start(self, count: int) -> Flow[None]:
        for number in range(len(self._runners), len(self._runners) + count):
            runner = yield Beside(self.part(self._run()), name=f"{self._name} {number}")
            self._runners.append(runner)

    def add(self, items: Iterable[Item]) -> None:
        with self._lock:
            self._inbox.extend(items)
            runner = self._next_to_wake()
        if runner is not None:
            runner.set()

    def empty_inbox(self) -> list[Item]:
        """Remove and return the items that no runner has taken."""
        with self._lock:
            items = list(self._inbox)
            self._inbox.clear()
        return items

    def waits(self, is_it: Callable[[Item], bool]) -> bool:
        """Return whether the next item that no runner has taken is one for which `is_it` is true."""
        with self._lock:
            return bool(self._inbox) and is_it(self._inbox[0])

    def part(self, part: Flow[None]) -> Flow[None]:
        """Wrap `part` so that its failure ends the whole crew: the others would work for nothing."""
        try:
            yield from part
        except Cancelled as error:
            if not self._is_cut_off:
                self.break_down(error)  # nobody cancelled it: it would be missing without a word
            raise
        except BaseException as error:
            self.break_down(error)

    def break_down(self, error: BaseException) -> None:
        """End the crew with `error`; its leader raises it when everything has ended."""
        _log.debug("%s ends: %s", self._name, described(error))
        if self.failure is None:
            self.failure = error
        elif self.failure is not error:
            annotate(self.failure, f"and then: {described(error)}")
        self.broken.set()

    def finish(self, deadline: float | None, *wake: Signal) -> Flow[bool]:
        """Let the runners empty the inbox and end, until `deadline` or a signal. Return True if all have ended."""
        self._no_more.set()
        yield from all_end(self._runners, self._clock, deadline, *wake)
        return all(runner.done for runner in self._runners)

    def cut_off(self, grace: float) -> Flow[int]:
        """Cancel the runners that are not done and wait `grace` seconds. Return how many threads were abandoned."""
        self._is_cut_off = True
        self._no_more.set()
        late = [runner for runner in self._runners if not runner.done]
        for runner in late:
            runner.cancel()  # this ends a coroutine, but not a thread
        try:
            yield from all_end(late, self._clock, self._clock.monotonic() + grace)
        finally:  # also when the wait is interrupted: nobody waits for them any more
            abandoned = self.abandon()
        return abandoned

    def abandon(self) -> int:
        """Let the leader end without the runners that are not done. Return how many these are."""
        abandoned = [runner for runner in self._runners if not runner.done]
        for runner in abandoned:
            runner.abandon()
        return len(abandoned)

    @property
    def abandoned(self) -> int:
        """The number of runners that were abandoned and have not ended yet."""
        return sum(runner.abandoned and not runner.done for runner in self._runners)

    def _run(self) -> Flow[None]:
        call = Signal()
        while True:
            item, runner = self._take(call)
            if item is _NOTHING:
                if self._no_more.is_set():
                    return
                yield Sleep(None, call, self._no_more)
                continue
            if runner is not None:
                runner.set()
            yield from self._work(item)

    def _take(self, call: Signal) -> tuple[Any, Signal | None]:
        """Return the next item, and the runner to wake for the one after it."""
        with self._lock:
            if self._called is call:
                self._called = None
            if not self._inbox:
                call.clear()
                if call not in self._idle:
                    self._idle.append(call)
                return _NOTHING, None
            return self._inbox.popleft(), self._next_to_wake()

    def _next_to_wake(self) -> Signal | None:
        if not self._inbox or not self._idle or self._called is not None:
            return None
        self._called = self._idle.popleft()
        return self._called


_NOTHING: Any = object()


def all_end(
    children: Sequence[Child[Any]], clock: Clock, deadline: float | None, *wake: Signal
) -> Flow[None]:
    """Wait until all `children` have ended, at most until `deadline`, or until a signal is set."""
    for child in children:
        while not child.done and not any(signal.is_set() for signal in wake):
            left = None if deadline is None else deadline - clock.monotonic()
            if left is not None and left <= 0:
                return
            yield Sleep(left, child.finished, *wake)
