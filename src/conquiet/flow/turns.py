"""Turns on one event loop: code that never waits must not keep it from everybody else.

A coroutine that never suspends runs to its end inside the driver, which is fast, but then a thousand of them in a row would
hold the event loop: no timer, no heartbeat and no `stop()` would be heard meanwhile. So all flows of a loop share one turn
of a few milliseconds. A flow that has used up the rest of it with a call that did not wait queues for the next one. A flow
that waits for something real never queues: it pays one comparison per call.
"""

from __future__ import annotations

import asyncio
from collections import deque
from weakref import WeakKeyDictionary

__all__ = ["Turns"]

_SECONDS = 0.01
_AT_A_TIME = 32  # flows that are woken per round of the event loop


class Turns:
    """The turns of one event loop. `until` is the time of the loop at which the current one ends."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.until = loop.time() + _SECONDS
        self._queue: deque[asyncio.Future[None]] = deque()
        self._passed_over: deque[asyncio.Future[None]] = (
            deque()
        )  # woken too late in the turn: first in the next
        self._is_asked = False

    @staticmethod
    def of(loop: asyncio.AbstractEventLoop) -> Turns:
        turns = _TURNS.get(loop)
        if turns is None:
            turns = _TURNS[loop] = Turns(loop)
        return turns

    async def next(self, loop: asyncio.AbstractEventLoop) -> None:
        """Wait until the event loop has served all others, and those that wait here have had their turn."""
        queue = self._queue
        while True:
            turn = loop.create_future()
            queue.append(turn)
            self._ask(loop)
            await turn
            if loop.time() < self.until:
                return
            queue = self._passed_over

    def _ask(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._is_asked:
            self._is_asked = True
            loop.call_soon(self._begin, loop)

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin a turn: once per round of the event loop, so that it has looked at its timers and sockets."""
        self._is_asked = False
        self.until = loop.time() + _SECONDS
        self._passed_over.extend(self._queue)
        self._queue, self._passed_over = self._passed_over, deque()
        for _ in range(min(len(self._queue), _AT_A_TIME)):
            turn = self._queue.popleft()
            if not turn.done():  # it is, if the flow was cancelled
                turn.set_result(None)
        if self._queue:
            self._ask(loop)


_TURNS: WeakKeyDictionary[asyncio.AbstractEventLoop, Turns] = WeakKeyDictionary()
