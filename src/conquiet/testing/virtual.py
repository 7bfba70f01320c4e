"""The virtual driver: runs flows on one thread, in virtual time, deterministically."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from types import GeneratorType
from typing import Any, TypeVar

from conquiet.errors import CallTimeoutError, FlowError
from conquiet.flow import (
    Beside,
    Call,
    Cancellation,
    Cancelled,
    Child,
    Flow,
    Sleep,
    Steps,
    describe,
    unknown_effect,
)
from conquiet.testing.clock import ManualClock

__all__ = ["VirtualDriver"]

T = TypeVar("T")

_EFFECTS = (Call, Sleep, Beside)


class VirtualDriver:
    """Drives flows without sleeping: when no flow can continue, its clock jumps to the next time at which one can.

    A call that returns a generator is driven as a flow, as the asyncio driver awaits an awaitable: in this way a call
    of a test takes (virtual) time. `choose(n)` picks one of n flows that could continue; the default takes them in
    turn, a seeded one explores orders, and in both cases a run can be repeated exactly.
    """

    def __init__(self, clock: ManualClock | None = None, choose: Callable[[int], int] | None = None) -> None:
        self.clock = clock or ManualClock()
        self._choose = choose or (lambda n: 0)
        self._ready: list[_Task] = []
        self._parked: dict[_Task, None] = {}
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._tie = itertools.count()

    def run(self, flow: Flow[T], *, cancel: Cancellation | None = None) -> T:
        """Drive `flow`, and everything that it starts, to its end."""
        child: Child[T] = Child("main")
        if cancel is not None:
            child.cancellation = cancel
        self._start(flow, child)
        while not child.done:
            if self._ready:
                self._ready.pop(self._choose(len(self._ready))).step()
            elif self._timers:
                deadline, _, ring = heapq.heappop(self._timers)
                self.clock.advance_to(deadline)
                ring()
            else:
                names = ", ".join(task.name for task in self._parked)
                raise FlowError(
                    f"no flow can continue; these wait for something that will not happen: {names}"
                )
        return child.result()

    def _start(self, flow: Flow[Any], child: Child[Any]) -> None:
        self._ready.append(_Task(self, flow, child))

    def _at(self, seconds: float, ring: Callable[[], None]) -> None:
        heapq.heappush(self._timers, (self.clock.monotonic() + max(seconds, 0.0), next(self._tie), ring))


class _Task:
    """One flow, and above it the calls in progress that are flows themselves."""

    def __init__(self, driver: VirtualDriver, flow: Flow[Any], child: Child[Any]) -> None:
        self.name = child.name
        self._driver = driver
        self._child = child
        self._frames = [_Frame(Steps(flow), shield=False)]
        self._interruptible = False
        self._unpark: Callable[[bool], None] | None = None
        child.cancellation.add_waker(self._on_request)

    def step(self) -> None:
        """Continue until this flow has to wait or has ended."""
        while self._frames:
            steps = self._frames[-1].steps
            try:
                if not steps.resume():
                    self._leave()
                    continue
                if not self._perform(steps):
                    return
            except BaseException as error:
                steps.error = error

    def _perform(self, steps: Steps[Any]) -> bool:
        """Perform one effect; False if the flow has to wait for it."""
        effect = steps.effect
        if not isinstance(effect, _EFFECTS):
            raise unknown_effect(effect)
        shielded = effect.shield or (
            len(self._frames) > 1 and any(frame.shield for frame in self._frames)
        )  # the first frame is never shielded
        if not shielded and self._child.cancellation.take():
            self._mark_interrupted()
            raise Cancelled
        if isinstance(effect, Call):
            steps.value = effect.fn(*effect.args)
            if type(steps.value) is GeneratorType:
                self._enter(effect, steps.value)
        elif isinstance(effect, Sleep):
            steps.value = any(signal.is_set() for signal in effect.wake)
            if not steps.value:
                self._park(effect, steps, shielded)
                return False
        else:
            steps.value = Child(effect.name)
            steps.adopt(steps.value)
            self._driver._start(effect.flow, steps.value)
        return True

    def _enter(self, call: Call, flow: Any) -> None:
        frame = _Frame(Steps(flow), call.shield)
        self._frames.append(frame)
        if call.timeout is not None:
            frame.limit = call
            self._driver._at(call.timeout, lambda: self._expire(frame))

    def _expire(self, frame: _Frame) -> None:
        """The time limit of a call in progress has passed: cancel what runs inside it, as asyncio does."""
        if frame in self._frames:
            frame.expired = True
            if self._unpark is not None:
                self._frames[-1].steps.error = Cancelled()
                self._unpark(False)

    def _leave(self) -> None:
        """The innermost flow has ended: pass its result to the flow below, or to the starter of this task."""
        frame = self._frames.pop()
        if not self._frames:
            self._child.cancellation.remove_waker(self._on_request)
            frame.steps.finish(self._child)
            return
        below = self._frames[-1].steps
        try:
            below.value = frame.steps.result()
        except BaseException as error:
            below.error = error
        if frame.expired and frame.limit is not None:
            fn, seconds = describe(frame.limit.fn), frame.limit.timeout
            if below.error is None and frame.limit.late is not None:
                frame.limit.late(below.value)
            below.error = CallTimeoutError(f"{fn} ran past its limit of {seconds:g} s and was cancelled")

    def _park(self, effect: Sleep, steps: Steps[Any], shielded: bool) -> None:
        driver = self._driver

        def unpark(woken: bool) -> None:
            if self._unpark is not unpark:
                return  # a timer or a signal has already unparked it
            self._unpark = None
            for signal in effect.wake:
                signal.remove_waker(wake)
            del driver._parked[self]
            steps.value = woken
            driver._ready.append(self)

        def wake() -> None:
            unpark(True)

        self._unpark = unpark
        self._interruptible = not shielded
        driver._parked[self] = None
        for signal in effect.wake:
            signal.add_waker(wake)
        if effect.seconds is not None:
            driver._at(effect.seconds, lambda: unpark(False))

    def _on_request(self) -> None:
        if self._unpark is not None and self._interruptible and self._child.cancellation.take():
            self._mark_interrupted()
            self._frames[-1].steps.error = Cancelled()
            self._unpark(False)

    def _mark_interrupted(self) -> None:
        """A request is delivered to the innermost flow: the calls that it is in are interrupted by it."""
        for frame in self._frames:
            if isinstance(frame.steps.effect, Call):
                frame.steps.effect.interrupted = True


class _Frame:
    """A flow on the stack, and the call that put it there."""

    def __init__(self, steps: Steps[Any], shield: bool) -> None:
        self.steps = steps
        self.shield = shield
        self.limit: Call | None = None
        self.expired = False
