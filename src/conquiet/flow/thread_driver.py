"""The driver on threads: `run` performs a flow's effects on the calling thread.

A driver only knows how to call, wait and start a child. A flow has the same meaning on both drivers; a test runs
random flows on them and on the virtual driver to prove it.
"""

from __future__ import annotations

import contextvars
import inspect
import types
from typing import Any, TypeVar

from conquiet.clock import SYSTEM_CLOCK, Clock, Parker
from conquiet.errors import AsyncCallableError
from conquiet.flow.effects import Beside, Call, Cancellation, Cancelled, Child, Flow, Sleep
from conquiet.flow.isolation import THREAD_CALLS, ThreadCalls, describe
from conquiet.flow.steps import EFFECTS, Steps, unknown_effect
from conquiet.flow.threads import THREADS

__all__ = ["run"]

T = TypeVar("T")


def run(
    flow: Flow[T],
    *,
    cancel: Cancellation | None = None,
    clock: Clock = SYSTEM_CLOCK,
    calls: ThreadCalls = THREAD_CALLS,
) -> T:
    """Drive `flow` on this thread to its end. `calls` runs the calls that have a time limit."""
    steps = Steps(flow)
    _drive(steps, cancel, clock, calls)
    return steps.result()


def _drive(steps: Steps[Any], cancel: Cancellation | None, clock: Clock, calls: ThreadCalls) -> None:
    while True:
        # One `try` around the step and the effect: whatever is raised in either is thrown into the flow.
        try:
            if not steps.resume():
                return
            effect = steps.effect
            if type(effect) not in EFFECTS:
                raise unknown_effect(effect)
            if cancel is not None and cancel.pending and not effect.shield and cancel.take():
                if isinstance(effect, Call):
                    effect.interrupted = True
                raise Cancelled
            if isinstance(effect, Call):
                steps.value = _call(effect, clock, calls)
            elif isinstance(effect, Sleep):
                steps.value = _sleep(effect, cancel, clock)
            else:
                steps.value = _beside(effect, clock, calls)
                steps.adopt(steps.value)
        except BaseException as error:
            steps.error = error


_COROUTINES = frozenset((types.CoroutineType, types.GeneratorType))


def _call(effect: Call, clock: Clock, calls: ThreadCalls) -> Any:
    if effect.timeout is None:
        value = effect.fn(*effect.args)
    else:
        value = calls.run(effect.fn, effect.args, effect.timeout, clock, effect.late)
    if type(value) in _COROUTINES and inspect.isawaitable(value):
        value.close()  # type: ignore[attr-defined]
        raise AsyncCallableError(
            f"{describe(effect.fn)} returned a coroutine, which cannot be awaited on a thread: use a plain function, or the "
            "asyncio variant of the class that calls it"
        )
    return value


def _sleep(effect: Sleep, cancel: Cancellation | None, clock: Clock) -> bool:
    """Park until the time is up, a signal is set, or (unless shielded) the flow is cancelled."""
    parker = Parker()
    fired = False

    def wake() -> None:
        nonlocal fired
        fired = True  # a signal wakes the sleep even if it has been cleared again by the time we look
        parker.wake()

    interruptible = cancel is not None and not effect.shield
    deadline = None if effect.seconds is None else clock.monotonic() + effect.seconds
    for signal in effect.wake:
        signal.add_waker(wake)
    if cancel is not None and interruptible:
        cancel.add_waker(parker.wake)
    try:
        while True:
            if fired or any(signal.is_set() for signal in effect.wake):
                return True
            if cancel is not None and interruptible and cancel.take():
                raise Cancelled
            left = None if deadline is None else deadline - clock.monotonic()
            if left is not None and left <= 0:
                return False
            clock.wait(parker, left)
    finally:
        for signal in effect.wake:
            signal.remove_waker(wake)
        if cancel is not None and interruptible:
            cancel.remove_waker(parker.wake)


def _beside(effect: Beside, clock: Clock, calls: ThreadCalls) -> Child[Any]:
    child: Child[Any] = Child(effect.name)
    steps = Steps(effect.flow)
    context = contextvars.copy_context()

    def drive() -> None:
        context.run(_drive, steps, child.cancellation, clock, calls)
        steps.finish(child)

    THREADS.start(drive, effect.name)
    return child
