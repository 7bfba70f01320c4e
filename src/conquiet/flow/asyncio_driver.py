"""The driver on asyncio: `run_async` performs a flow's effects in the calling task."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from conquiet.errors import CallTimeoutError, FlowError
from conquiet.flow.effects import Beside, Call, Cancellation, Cancelled, Child, Effect, Flow, Sleep
from conquiet.flow.isolation import describe
from conquiet.flow.steps import EFFECTS, Steps, unknown_effect
from conquiet.flow.turns import Turns

__all__ = ["run_async"]

T = TypeVar("T")

_PLAIN = frozenset((type(None), bool, int, float, str, bytes, list, dict, tuple))  # never awaitable
_SLACK = 1e-6  # seconds: rounding must not turn an end at the limit into one past it


async def run_async(flow: Flow[T], *, cancel: Cancellation | None = None) -> T:
    """Drive `flow` in this task to its end. Cancelling the task cancels the flow, as `cancel` does."""
    steps = Steps(flow)
    await _TaskDriver(steps, cancel, beside=False).drive()
    return steps.result()


class _TaskDriver:
    """Drives one flow in one task. Requests to cancel reach it as `task.cancel()` or as a `Cancellation`.

    The task of a flow beside another is known to nobody: it is cancelled through its `Child`. A `task.cancel()` during a call
    is then the doing of the callee, which has cancelled the task that it runs in, and the call has failed.
    """

    def __init__(self, steps: Steps[Any], cancel: Cancellation | None, *, beside: bool) -> None:
        task = asyncio.current_task()
        if task is None:
            raise FlowError("run_async needs a running asyncio task")
        self._steps = steps
        self._cancel = cancel
        self._is_child = beside
        self._task = task
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._seen = task.cancelling()  # requests from before this driver, or already delivered to the flow
        self._owed = 0  # requests to the task that came during a shielded effect
        self._open = False  # suspended in an effect that a request may interrupt
        self._interrupted = False  # we cancelled our own task to end that suspension
        self._turns = Turns.of(self._loop)

    async def drive(self) -> None:
        if self._cancel is not None:
            self._cancel.add_waker(self._on_request)
        try:
            # A thousand flows may be started at once, and each may begin with a call that does not wait.
            await self._drive(self._is_child and self._loop.time() >= self._turns.until)
        finally:
            if self._cancel is not None:
                self._cancel.remove_waker(self._on_request)
            if self._owed or self._task.cancelling() > self._seen:
                # Requested during the last effect: the flow keeps its result, and the task that awaits it is cancelled
                # at its next suspension, as asyncio does. A request must not be lost because an effect was shielded.
                self._task.cancel()
                self._task.uncancel()

    async def _drive(self, turn_is_over: bool) -> None:
        """`turn_is_over`: calls that did not wait have used it up, and others must run before the next one."""
        steps, turns, now = self._steps, self._turns, self._loop.time
        while True:
            try:
                if not steps.resume():
                    return
                effect = steps.effect
                if type(effect) not in EFFECTS:
                    raise unknown_effect(effect)
                if turn_is_over and not effect.shield:
                    turn_is_over = False
                    if isinstance(effect, Call):
                        await self._wait(turns.next(self._loop), effect)
                if not effect.shield and (
                    self._owed
                    or self._task.cancelling() > self._seen
                    or (self._cancel is not None and self._cancel.pending)
                ):
                    await self._deliver_request(effect)
                if isinstance(effect, Call):
                    if effect.timeout is None:
                        value = effect.fn(*effect.args)
                        if type(value) not in _PLAIN and inspect.isawaitable(value):
                            value = await self._wait(value, effect)
                        else:
                            turn_is_over = now() >= turns.until
                        steps.value = value
                    else:
                        steps.value, waited = await self._limited_call(effect, effect.timeout)
                        turn_is_over = not waited and now() >= turns.until
                elif isinstance(effect, Sleep):
                    steps.value = await self._wait(self._sleep(effect), effect)
                else:
                    steps.value = self._beside(effect)
                    steps.adopt(steps.value)
            except BaseException as error:
                steps.error = error
                turn_is_over = now() >= turns.until
            if self._is_child and self._task.cancelling() - self._interrupted > self._seen:
                await self._end_call_that_cancelled_us()

    async def _end_call_that_cancelled_us(self) -> None:
        """A callee has cancelled its own task and did not wait any more: that must not reach the effects after it."""
        steps = self._steps
        if not isinstance(steps.effect, Call) or steps.effect.shield:
            return
        self._seen = self._task.cancelling()
        try:
            await asyncio.sleep(0)
        except Cancelled as error:
            steps.error = steps.error or error

    async def _deliver_request(self, effect: Effect) -> None:
        """Raise `Cancelled` if a request has not been delivered to the flow yet."""
        if isinstance(effect, Call):
            effect.interrupted = True
        if self._owed:
            self._owed -= 1
            raise Cancelled
        if self._interrupted and self._cancel is not None and self._cancel.take():
            self._forget_interrupt()  # the call swallowed it
            raise Cancelled
        if self._task.cancelling() > self._seen:
            # Requested while this task was running: asyncio raises at the next suspension. Or the call swallowed
            # it (before Python 3.12 asyncio.wait_for does, when it has just finished).
            self._seen = self._task.cancelling()
            await asyncio.sleep(0)
            raise Cancelled
        if self._cancel is not None and self._cancel.take():
            self._forget_interrupt()
            raise Cancelled

    async def _limited_call(self, effect: Call, timeout: float) -> tuple[Any, bool]:
        """Perform a call under its time limit, which runs from its beginning. Return its value, and whether it waited.

        asyncio can cancel only what waits. A call that blocks the loop past its limit has run past it all the same: as
        on a thread, its result no longer counts.
        """
        now = self._loop.time
        deadline = now() + timeout
        limit = None
        try:
            value = effect.fn(*effect.args)
            if type(value) not in _PLAIN and inspect.isawaitable(value):
                limit = asyncio.timeout_at(deadline)
                value = await self._wait(_within(limit, value), effect)
        except Exception as error:
            if limit is not None and limit.expired():
                raise _ran_past(effect) from None
            if now() > deadline + _SLACK:
                raise _ran_past(effect) from error
            raise
        if (limit is None or not limit.expired()) and now() <= deadline + _SLACK:
            return value, limit is not None
        if effect.late is not None:
            effect.late(value)
        raise _ran_past(effect)

    async def _wait(self, awaitable: Awaitable[Any], effect: Effect) -> Any:
        if effect.shield:
            return await self._wait_shielded(awaitable)
        self._open = True
        try:
            return await awaitable
        except Cancelled:
            if self._interrupted and self._cancel is not None:
                requested = self._cancel.take()
                self._forget_interrupt()
            else:
                requested = not self._is_child and self._task.cancelling() > self._seen
                self._seen = self._task.cancelling()
            if requested and isinstance(effect, Call):
                effect.interrupted = True
            raise
        finally:
            self._open = False

    async def _wait_shielded(self, awaitable: Awaitable[Any]) -> Any:
        inner = asyncio.ensure_future(awaitable)
        while not inner.done():
            try:
                await asyncio.wait((inner,))
            except Cancelled:
                self._owed += 1
                self._seen = self._task.cancelling()
        return inner.result()

    def _on_request(self) -> None:
        """Called on any thread when a request is made. A request by our own task needs no wake-up."""
        if threading.get_ident() == self._thread and asyncio.current_task(self._loop) is self._task:
            return
        with _open_loop(self._loop):
            self._loop.call_soon_threadsafe(self._interrupt)

    def _interrupt(self) -> None:
        if self._open and not self._interrupted and self._cancel is not None and self._cancel.pending:
            self._interrupted = True
            self._task.cancel()

    def _forget_interrupt(self) -> None:
        """Undo our own cancel of the task: the request came through `cancel` and is delivered."""
        if self._interrupted:
            self._interrupted = False
            self._task.uncancel()
            self._seen = min(self._seen, self._task.cancelling())

    async def _sleep(self, effect: Sleep) -> bool:
        if not effect.wake:
            if effect.seconds is None:
                await self._loop.create_future()
            else:
                await asyncio.sleep(effect.seconds)
            return False
        woken = asyncio.Event()

        def wake() -> None:
            with _open_loop(self._loop):
                self._loop.call_soon_threadsafe(woken.set)

        for signal in effect.wake:
            signal.add_waker(wake)
        try:
            if not any(signal.is_set() for signal in effect.wake):
                async with asyncio.timeout(effect.seconds):
                    await woken.wait()
            return True
        except TimeoutError:
            return any(signal.is_set() for signal in effect.wake)
        finally:
            for signal in effect.wake:
                signal.remove_waker(wake)

    def _beside(self, effect: Beside) -> Child[Any]:
        child: Child[Any] = Child(effect.name)
        steps = Steps(effect.flow)

        async def drive() -> None:
            await _TaskDriver(steps, child.cancellation, beside=True).drive()
            steps.finish(child)

        def ended(task: asyncio.Task[None]) -> None:
            _TASKS.discard(task)
            if not child.done:  # cancelled from outside before its first step, so that `drive` never ran
                child.finish(None, Cancelled())

        task = self._loop.create_task(drive(), name=f"conquiet {effect.name}")
        _TASKS.add(task)  # the loop itself keeps only a weak reference
        task.add_done_callback(ended)
        return child


_TASKS: set[asyncio.Task[None]] = set()


def _ran_past(effect: Call) -> CallTimeoutError:
    return CallTimeoutError(
        f"{describe(effect.fn)} ran past its limit of {effect.timeout:g} s and was cancelled"
    )


async def _within(limit: asyncio.Timeout, awaitable: Awaitable[Any]) -> Any:
    async with limit:
        return await awaitable


@contextmanager
def _open_loop(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Ignore that the loop is closed, because nothing waits on it any more; other errors are raised."""
    try:
        yield
    except RuntimeError:
        if not loop.is_closed():
            raise
