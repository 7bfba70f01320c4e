"""Context and time limits for one call, as the engine itself applies them."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import copy_context
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from conquiet.flow import Call, Flow, call_in, run, run_async

__all__ = ["run_with_timeout", "run_with_timeout_async", "with_context", "with_context_async"]

P = ParamSpec("P")
T = TypeVar("T")


def run_with_timeout(fn: Callable[..., T], *args: Any, timeout: float | None) -> T:
    """`fn(*args)` in the caller's context, or `CallTimeoutError` (a TimeoutError) after `timeout` seconds.

    A thread cannot be stopped: past its limit the call runs on, fenced and counted, and its result is dropped.
    """
    value: T = run(_called(fn, args, timeout))
    return value


async def run_with_timeout_async(fn: Callable[..., Awaitable[T]], *args: Any, timeout: float | None) -> T:
    """`await fn(*args)` in the caller's context; past `timeout` seconds it is cancelled: `CallTimeoutError`."""
    value: T = await run_async(_called(fn, args, timeout))
    return value


def with_context(fn: Callable[P, T]) -> Callable[P, T]:
    """`fn`, bound to the current context, spans included, wherever it is called (on another thread, say)."""
    context = copy_context()

    @wraps(fn)
    def in_context(*args: P.args, **kwargs: P.kwargs) -> T:
        # A copy for each call: a context cannot be entered twice at a time, and calls must not see what others set.
        return context.copy().run(fn, *args, **kwargs)

    return in_context


def with_context_async(
    fn: Callable[P, Coroutine[Any, Any, T]],
) -> Callable[P, Coroutine[Any, Any, T]]:
    """`fn`, bound to the current context, spans included, in whichever asyncio task it is awaited."""
    context = copy_context()

    @wraps(fn)
    async def in_context(*args: P.args, **kwargs: P.kwargs) -> T:
        value: Any = call_in(context.copy(), lambda: fn(*args, **kwargs))
        if inspect.isawaitable(value):  # a coroutine that did not wait for anything has already ended
            value = await value
        ended: T = value
        return ended

    return in_context


def _called(fn: Callable[..., Any], args: tuple[Any, ...], timeout: float | None) -> Flow[Any]:
    return (yield Call(fn, *args, timeout=timeout))
