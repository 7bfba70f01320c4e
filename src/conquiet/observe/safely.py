"""Metrics and spans never raise: a broken backend is said once, in the log, and work goes on."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from typing import Any

__all__ = ["safely", "say_once"]

_log = logging.getLogger("conquiet.observe")


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
