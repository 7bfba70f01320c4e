"""The driver on asyncio: `run_async` performs a flow's effects in the calling task."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from conquiet.errors import CallTimeoutError, FlowError
from conquiet.flow.effects import Beside, Call, Cancellation, Cancelled, Child, Flow, Sleep
from conquiet.flow.isolation import describe
from conquiet.flow.steps import EFFECTS, Steps, unknown_effect

__all__ = ["run_async"]

T = TypeVar("T")

_PLAIN = frozenset((type(None), bool, int, float, str, bytes, list, dict, tuple))  # never awaitable


async def run_async(flow: Flow[T], *, cancel: Cancellation | None = None) -> T:
    """Drive `flow` in this task to its end. Cancelling the task cancels the flow, as `cancel` does."""
    steps = Steps(flow)
    await _TaskDriver(steps, cancel).drive()
    return steps.result()


class _TaskDriver:
    """Drives one flow in one task. Requests to cancel reach it as `task.cancel()` or as a `Cancellation`."""

    def __init__(self, steps: Steps[Any], cancel: Cancellation | None) -> None:
        task = asyncio.current_task()
        if task is None:
            raise FlowError("run_async needs a running asyncio task")
        self._steps = steps
        self._cancel = cancel
        self._task = task
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._seen = task.cancelling()  # requests from before this driver, or already delivered to the flow
        self._owed = 0  # requests to the task that came during a shielded effect
        self._open = False  # suspended in an effect that a request may interrupt
        self._interrupted = False  # we cancelled our own task to end that suspension

    async def drive(self) -> None:
        if self._cancel is not None:
            self._cancel.add_waker(self._on_request)
        try:
            await self._drive()
        finally:
            if self._cancel is not None:
                self._cancel.remove_waker(self._on_request)
            if self._owed or self._task.cancelling() > self._seen:
                # Requested during the last effect: the flow keeps its result, and the task that awaits it is cancelled
                # at its next suspension, as asyncio does. A request must not be lost because an effect was shielded.
                self._task.cancel()
                self._task.uncancel()

    async def _drive(self) -> None:
        steps = self._steps
        while True:
            try:
                if not steps.resume():
                    return
                effect = steps.effect
                if type(effect) not in EFFECTS:
                    raise unknown_effect(effect)
                if not effect.shield and (
                    self._owed
                    or self._task.cancelling() > self._seen
                    or (self._cancel is not None and self._cancel.pending)
                ):
                    await self._deliver_request()
                if isinstance(effect, Call):
                    value = effect.fn(*effect.args)
                    if type(value) not in _PLAIN and inspect.isawaitable(value):
                        limited = value if effect.timeout is None else _limited(value, effect)
                        value = await self._wait(limited, effect.shield)
                    steps.value = value
                elif isinstance(effect, Sleep):
                    steps.value = await self._wait(self._sleep(effect), effect.shield)
                else:
                    steps.value = self._beside(effect)
                    steps.adopt(steps.value)
            except BaseException as error:
                steps.error = error

    async def _deliver_request(self) -> None:
        """Raise `Cancelled` if a request has not been delivered to the flow yet."""
        if self._owed:
            self._owed -= 1
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

    async def _wait(self, awaitable: Awaitable[Any], shield: bool) -> Any:
        if shield:
            return await self._wait_shielded(awaitable)
        self._open = True
        try:
            return await awaitable
        except Cancelled:
            if self._interrupted and self._cancel is not None:
                self._cancel.take()
                self._forget_interrupt()
            else:
                self._seen = self._task.cancelling()
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
            await _TaskDriver(steps, child.cancellation).drive()
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


async def _limited(awaitable: Awaitable[Any], effect: Call) -> Any:
    try:
        async with asyncio.timeout(effect.timeout) as limit:
            value = await awaitable
    except TimeoutError:
        if not limit.expired():
            raise  # a TimeoutError of the call itself
    else:
        if not limit.expired():
            return value
    raise CallTimeoutError(
        f"{describe(effect.fn)} ran past its limit of {effect.timeout:g} s and was cancelled"
    )


@contextmanager
def _open_loop(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Ignore that the loop is closed, because nothing waits on it any more; other errors are raised."""
    try:
        yield
    except RuntimeError:
        if not loop.is_closed():
            raise
