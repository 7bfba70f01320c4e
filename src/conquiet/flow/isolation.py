"""Calls under a time limit, and what happens to them at the limit.

| the call runs on | when the time is up                                                          |
| ---------------- | ---------------------------------------------------------------------------- |
| a coroutine      | it is cancelled (by the asyncio driver, not here)                             |
| a thread         | nothing can stop it: it is *abandoned* – fenced, counted, bounded            |
| a process        | the child process is killed (`conquiet.flow.process`): the only hard stop    |

An abandoned call runs on, but its result is discarded, and `current_fence().check()` raises in it: code that acts for
a caller checks that first.
"""

from __future__ import annotations

import contextvars
import logging
import os
import threading
from collections.abc import Callable
from typing import Any

from conquiet.clock import SYSTEM_CLOCK, Clock, Parker
from conquiet.errors import AbandonedCallError, AbandonedThreadsError, CallTimeoutError
from conquiet.flow.threads import THREADS
from conquiet.redaction import described

__all__ = ["THREAD_CALLS", "Fence", "ThreadCalls", "carry_fence", "current_fence", "describe"]


_log = logging.getLogger("conquiet.flow")


class Fence:
    """Tells whether a call still acts for its caller. A closed fence stays closed, as do those of calls inside it."""

    __slots__ = ("_closed", "_name", "_outer")

    def __init__(self, name: str, outer: Fence | None = None) -> None:
        self._name = name
        self._outer = outer
        self._closed = False

    @property
    def closed(self) -> bool:
        return self._closed or (self._outer is not None and self._outer.closed)

    def close(self) -> None:
        self._closed = True

    def check(self) -> None:
        """Raise `AbandonedCallError` if the caller has abandoned this call."""
        if self.closed:
            raise AbandonedCallError(
                f"{self._name} was abandoned at its time limit and no longer acts for its caller"
            )


_OPEN = Fence("this call")
_FENCE: contextvars.ContextVar[Fence] = contextvars.ContextVar("conquiet_fence", default=_OPEN)


def current_fence() -> Fence:
    """Return the fence of the call that this code runs in. Outside any timed call it is never closed."""
    return _FENCE.get()


def carry_fence(context: contextvars.Context) -> None:
    """Copy the fence of the current call to `context`, so that its time limit also applies there."""
    fence = _FENCE.get()
    if fence is not _OPEN and context.get(_FENCE) is not fence:
        context.run(_FENCE.set, fence)


def describe(fn: Callable[..., Any]) -> str:
    """Return a callable's name for messages, never its arguments, which may be secret."""
    return getattr(fn, "__qualname__", None) or type(fn).__qualname__


class ThreadCalls:
    """Runs calls under a time limit on reused threads; `max_abandoned` bounds those that hang."""

    def __init__(self, max_abandoned: int = 16) -> None:
        self.max_abandoned = max_abandoned
        self.abandoned = 0  # timed out and still running
        self.abandoned_total = 0
        self._lock = threading.Lock()
        self._pid = os.getpid()

    @property
    def is_full(self) -> bool:
        """Whether so many calls hang that no other is started."""
        return self.abandoned >= self.max_abandoned and os.getpid() == self._pid

    def run(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        timeout: float,
        clock: Clock = SYSTEM_CLOCK,
        late: Callable[[Any], None] | None = None,
    ) -> Any:
        """Call `fn(*args)`; raise `CallTimeoutError` after `timeout` seconds. What it returns later goes to `late`.

        If `max_abandoned` calls are still hanging, no new one is started and `AbandonedThreadsError` is raised.
        """
        if (
            os.getpid() != self._pid
        ):  # a forked child has none of the hanging threads, but maybe a lock that one of them held
            self._pid, self._lock, self.abandoned = os.getpid(), threading.Lock(), 0
        if self.is_full:
            raise AbandonedThreadsError(
                f"{self.abandoned} calls ran past their time limit and still hold their threads (the bound is "
                f"{self.max_abandoned}): {describe(fn)} was not started. Threads cannot be stopped; restart the "
                "process, and give the calls their own time limits or run them in processes"
            )
        call = _TimedCall(self, fn, args, late)
        THREADS.start(call.work, describe(fn))
        deadline = clock.monotonic() + timeout
        try:
            while not call.done and (left := deadline - clock.monotonic()) > 0:
                clock.wait(call.parker, left)
        except BaseException:
            call.abandon()  # Ctrl-C in the waiting thread: the result is not needed
            raise
        if call.abandon():
            raise CallTimeoutError(
                f"{describe(fn)} ran past its limit of {timeout:g} s; its thread cannot be stopped and was "
                "abandoned, its result will be discarded"
            )
        return call.result()

    def _count(self, by: int) -> None:
        with self._lock:
            self.abandoned += by
            self.abandoned_total += max(by, 0)


class _TimedCall:
    """One call. Either it ends first or its caller abandons it; the lock decides which."""

    __slots__ = (
        "_abandoned",
        "_args",
        "_calls",
        "_context",
        "_error",
        "_fence",
        "_fn",
        "_late",
        "_lock",
        "_value",
        "done",
        "parker",
    )

    def __init__(
        self,
        calls: ThreadCalls,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        late: Callable[[Any], None] | None,
    ) -> None:
        self._calls = calls
        self._late = late
        self._fn = fn
        self._args = args
        self._context = contextvars.copy_context()
        self._fence = Fence(describe(fn), _FENCE.get())
        self._lock = threading.Lock()
        self._value: Any = None
        self._error: BaseException | None = None
        self._abandoned = False
        self.done = False
        self.parker = Parker()

    def work(self) -> None:
        value, error = None, None
        try:
            value = self._context.run(self._inside)
        except BaseException as raised:
            error = raised
        with self._lock:
            abandoned = self._abandoned
            if not abandoned:
                self._value, self._error, self.done = value, error, True
        if not abandoned:
            self.parker.wake()
            return
        try:
            if error is None and self._late is not None:
                self._late(value)
        except Exception as failed:
            _log.error("the late result of %s was lost: %s", describe(self._fn), described(failed))
        finally:
            self._calls._count(-1)

    def _inside(self) -> Any:
        _FENCE.set(self._fence)
        return self._fn(*self._args)

    def abandon(self) -> bool:
        """Abandon the call. Return False if it has already ended."""
        with self._lock:
            if self.done:
                return False
            self._abandoned = True
            self._fence.close()
            self._calls._count(+1)
        return True

    def result(self) -> Any:
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        return self._value


THREAD_CALLS = ThreadCalls()
