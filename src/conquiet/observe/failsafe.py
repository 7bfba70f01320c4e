"""Metrics and spans never raise: a broken backend is said once, in the log, and work goes on."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache, wraps
from threading import RLock
from typing import Any, TypeVar

__all__ = ["once", "safely", "say_once"]

T = TypeVar("T")

_log = logging.getLogger("conquiet.observe")


def once(make: Callable[[], T]) -> Callable[[], T]:
    """`make`, called once in the process: two threads that register the same metrics at once would fail."""
    lock, made = RLock(), cache(make)

    @wraps(make)
    def the_one() -> T:
        with lock:
            return made()

    return the_one


def safely(record: Callable[..., Any], *args: Any) -> None:
    """`record(*args)`; what it raises is logged, the first time."""
    try:
        record(*args)
    except Exception:  # noqa: BLE001 - document 001: metrics never raise
        say_once("metrics")


@cache
def say_once(backend: str) -> None:
    """From an `except` block: that the backend for metrics, or for spans, has failed."""
    _log.exception("the %s backend failed; work goes on, %s may be wrong (said once)", backend, backend)
