"""Calls in a context of their own: what they set in context variables is not there for the next."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from types import CoroutineType, coroutine
from typing import Any

__all__ = ["call_in"]


def call_in(context: Context, fn: Callable[..., Any], *args: Any) -> Any:
    """`fn(*args)` in `context`; if that gives a coroutine, one that runs in `context` too, in the same task."""
    value = context.run(fn, *args)
    return _awaited(context, value) if type(value) is CoroutineType else value


@coroutine
def _awaited(context: Context, running: Coroutine[Any, Any, Any]) -> Generator[Any, Any, Any]:
    """Await `running` in this task, but in `context`. (A task of its own would be cancelled and fail apart.)"""
    step: Callable[[Any], Any] = running.send
    value: Any = None
    while True:
        try:
            awaited = context.run(step, value)
        except StopIteration as stop:
            return stop.value
        try:
            value, step = (yield awaited), running.send
        except BaseException as error:
            value, step = error, running.throw
