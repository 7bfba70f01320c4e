"""Virtual time for threads: a clock that jumps if and only if all threads wait on it."""

from __future__ import annotations

import math
import threading
import time
from types import TracebackType

from conquiet.clock import Parker
from conquiet.errors import FlowError
from conquiet.flow import THREADS, Threads

__all__ = ["AutojumpClock"]

_SHORTEST = 0.00005  # real seconds between two checks of the other threads
_LONGEST = 0.0005


class AutojumpClock:
    """A clock for flows on threads (`conquiet.flow.run`) that needs no real time:

        with AutojumpClock() as clock:
            report = task.consume_transactions(connector, policy, clock=clock)

    Code under test that "takes five seconds" calls `clock.sleep(5)`. When every participating thread waits on this
    clock, it jumps to the earliest deadline. The participants are the thread that created the clock and every thread
    on which flows have run something since then (a child beside, a call under a time limit). This is exact: a thread
    that runs, or that was woken and has not resumed yet, stops the clock.

    Leaving the `with` block lets calls that were abandoned at their time limit finish. A run that is stuck (all
    threads wait for something that will not happen, or one blocks on something else) raises FlowError after
    `patience` real seconds.
    """

    def __init__(
        self, start: float = 1_700_000_000.0, *, patience: float = 20.0, threads: Threads = THREADS
    ) -> None:
        self._start = start
        self._now = 0.0
        self._patience = patience
        self._threads = threads
        self._before = threads.started  # earlier calls on threads do not take part
        self._caller = threading.get_ident()
        self._lock = threading.Lock()
        self._waiting: dict[int, _Waiter] = {}  # by thread
        self._moved_at = (
            time.monotonic()
        )  # in real time: when a thread last began to wait, resumed or became due

    def time(self) -> float:
        return self._start + self._now

    def monotonic(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        """Let `seconds` of this clock pass."""
        self.wait(Parker(), seconds)

    def wait(self, parker: Parker, timeout: float | None) -> bool:
        with self._lock:
            waiter = _Waiter(parker, math.inf if timeout is None else self._now + timeout)
        self._wait(waiter)
        return waiter.woken

    def finish(self) -> None:
        """Wait, on this clock, until no thread but the caller is running."""
        self._wait(_LastWaiter(self))

    def __enter__(self) -> AutojumpClock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.finish()

    def _wait(self, waiter: _Waiter) -> None:
        me = threading.get_ident()
        pause = _SHORTEST
        with self._lock:
            self._waiting[me] = waiter
            self._moved_at = time.monotonic()
        try:
            while True:
                with self._lock:
                    if waiter.goes_on(self._now):
                        return
                    if self._everybody_waits():
                        self._jump()
                        continue
                    # Many threads that check often would slow down each other and the running ones.
                    longest = _LONGEST * max(1.0, len(self._waiting) / 4)
                    self._check_patience()
                waiter.doze(pause)
                pause = min(pause * 2, longest)
        finally:
            with self._lock:
                del self._waiting[me]
                self._moved_at = time.monotonic()

    def _everybody_waits(self) -> bool:
        # First the participants, then their parkers: a thread wakes others before it ends.
        threads = (self._caller, *self._threads.busy(self._before))
        if self._rouse() or any(thread not in self._waiting for thread in threads):
            return False
        return any(waiter.deadline < math.inf for waiter in self._waiting.values())

    def _rouse(self) -> bool:
        """Wake the waiters that can resume, earlier than their next check; returns whether there are any."""
        roused = [waiter for waiter in self._waiting.values() if waiter.goes_on(self._now)]
        for waiter in roused:
            waiter.rouse()
        return bool(roused)

    def _jump(self) -> None:
        self._now = min(waiter.deadline for waiter in self._waiting.values())
        self._moved_at = time.monotonic()
        self._rouse()

    def _check_patience(self) -> None:
        if time.monotonic() - self._moved_at < self._patience:
            return
        threads = {self._caller, *self._threads.busy(self._before)}
        missing = len(threads - self._waiting.keys())
        what = (
            f"{missing} of them neither wait on it nor end"
            if missing
            else "none with a deadline: none can resume"
        )
        raise FlowError(f"virtual time is stuck at {self._now:g} s: of {len(threads)} threads, {what}")


class _Waiter:
    """One thread in `wait`. Its parker is checked only under the clock's lock, so that no wake is lost."""

    __slots__ = ("_alarm", "_parker", "deadline", "woken")

    def __init__(self, parker: Parker, deadline: float) -> None:
        # A bare lock: SimpleQueue.get(timeout=...) may wait for ever if the thread is delayed past the timeout (CPython).
        self._alarm = threading.Lock()
        self._alarm.acquire()
        self._parker = parker
        self.deadline = deadline
        self.woken = False

    def goes_on(self, now: float) -> bool:
        if not self.woken:
            self.woken = self._parker.park(0)
        return self.woken or self.deadline <= now

    def doze(self, seconds: float) -> None:
        self._alarm.acquire(timeout=seconds)

    def rouse(self) -> None:
        if self._alarm.locked():
            self._alarm.release()


class _LastWaiter(_Waiter):
    """The caller, waiting for the others to end."""

    __slots__ = ("_clock",)

    def __init__(self, clock: AutojumpClock) -> None:
        super().__init__(Parker(), math.inf)
        self._clock = clock

    def goes_on(self, now: float) -> bool:
        return not self._clock._threads.busy(self._clock._before)
