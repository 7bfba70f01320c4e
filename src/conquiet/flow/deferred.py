"""Functions that do nothing when they are called: what they return has to be run, and nobody would.

Whoever settles work by the return of a function (acknowledges a message, a job) must not take such a return for success.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from concurrent.futures import Future
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any

from conquiet.errors import AsyncCallableError
from conquiet.flow.isolation import describe

__all__ = ["deferred_kind", "refuse_deferred"]

_KINDS: tuple[tuple[Any, str], ...] = (
    (GeneratorType, "a generator"),
    (AsyncGeneratorType, "an asynchronous generator"),
    (CoroutineType, "a coroutine"),
    ((map, filter), "a lazy iterator"),
    (Future, "a Future of work that may not be done"),
)


def deferred_kind(function: Any) -> str:
    """Return what kind of function it is, if calling it does not run it: "generator function", …; otherwise ""."""
    called = getattr(function, "__call__", None)  # noqa: B004 - of an object
    for one in (function, called):
        if inspect.iscoroutinefunction(one):
            return "coroutine function"
        if inspect.isgeneratorfunction(one) or inspect.isasyncgenfunction(one):
            return "generator function"
    return ""


def refuse_deferred(function: Callable[..., Any], value: object) -> None:
    """Raise if `value`, which `function` returned (on asyncio: after it was awaited), is work that was not done."""
    kind = next((name for types, name in _KINDS if isinstance(value, types)), "")
    if not kind:
        if not inspect.isawaitable(value):
            return
        kind = f"an awaitable ({type(value).__qualname__})"
    if isinstance(value, GeneratorType | CoroutineType):
        value.close()  # not run either; Python would warn that it never was
    raise AsyncCallableError(
        f"{describe(function)} returned {kind}, and nobody runs that: its work is not done. Do the work before it "
        "returns: without yield, with await in a coroutine function (for the asyncio classes), with .result() of a Future"
    )
