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
    """Call `fn(*args)` in the caller's context; raise `CallTimeoutError` (a TimeoutError) after `timeout` seconds.

    A thread cannot be stopped: past its limit the call continues, fenced and counted, and its result is dropped.
    """
    value: T = run(_called(fn, args, timeout))
    return value


async def run_with_timeout_async(fn: Callable[..., Awaitable[T]], *args: Any, timeout: float | None) -> T:
    """Await `fn(*args)` in the caller's context; after `timeout` seconds cancel it and raise `CallTimeoutError`."""
    value: T = await run_async(_called(fn, args, timeout))
    return value


def with_context(fn: Callable[P, T]) -> Callable[P, T]:
    """Bind `fn` to the current context, including spans, wherever it is called (such as on another thread)."""
    context = copy_context()

    @wraps(fn)
    def in_context(*args: P.args, **kwargs: P.kwargs) -> T:
        # A copy per call: a context cannot be entered twice concurrently, and calls must not see each other's values.
        return context.copy().run(fn, *args, **kwargs)

    return in_context


def with_context_async(
    fn: Callable[P, Coroutine[Any, Any, T]],
) -> Callable[P, Coroutine[Any, Any, T]]:
    """Bind `fn` to the current context, including spans, in whichever asyncio task it is awaited."""
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
