"""Calls in a given context: what they set in context variables is not seen by other calls."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from types import CoroutineType, coroutine
from typing import Any

from conquiet.flow.isolation import carry_fence

__all__ = ["call_in"]


def call_in(context: Context, fn: Callable[..., Any], *args: Any) -> Any:
    """Call `fn(*args)` in `context`. If it returns a coroutine, that runs in `context` too, in the same task.

    The coroutine is started immediately. If it never waits, it has already ended, and its value is returned directly.
    """
    carry_fence(context)
    value = context.run(fn, *args)
    if type(value) is not CoroutineType:
        return value
    try:
        awaited = context.run(value.send, None)
    except StopIteration as stop:
        return stop.value
    return _awaited(context, value, awaited)


@coroutine
def _awaited(context: Context, running: Coroutine[Any, Any, Any], awaited: Any) -> Generator[Any, Any, Any]:
    """Await `running` in this task, but in `context`. (A separate task would be cancelled, and fail, separately.)"""
    while True:
        step: Callable[[Any], Any] = running.send
        try:
            value = yield awaited
        except BaseException as error:
            value, step = error, running.throw
        try:
            awaited = context.run(step, value)
        except StopIteration as stop:
            return stop.value
