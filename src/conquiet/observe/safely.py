"""Metrics never raise: a broken metrics backend is said once, in the log, and work goes on."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from typing import Any

__all__ = ["safely"]

_log = logging.getLogger("conquiet.observe")


def safely(record: Callable[..., Any], *args: Any) -> None:
    """`record(*args)`; what it raises is logged, the first time."""
    try:
        record(*args)
    except Exception:  # noqa: BLE001 - document 001: metrics never raise
        _say_once()


@cache
def _say_once() -> None:
    _log.exception("the metrics backend failed; work goes on, metrics may be wrong (said once)")
