"""Metrics and spans never raise: a failing backend is logged once, and the work continues."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from threading import RLock
from typing import Any, TypeVar

from conquiet.observe.logs import SafeLogger

__all__ = ["read_at_scrape", "refresh_gauges", "registered", "safely", "say_once"]

T = TypeVar("T")

_log = SafeLogger("conquiet.observe")


def registered(make: Callable[[Any], T]) -> Callable[[], T | None]:
    """Call `make(prometheus_client)` once per process; None if prometheus_client is not installed.

    Under a lock: two threads that register the same metrics at the same time would fail.
    """
    lock = RLock()

    @cache
    def made() -> T | None:
        try:
            import prometheus_client
        except ImportError:
            return None
        return make(prometheus_client)

    @wraps(make)
    def families() -> T | None:
        with lock:
            return made()

    return families


_READ: dict[Any, Callable[[], float]] = {}


def read_at_scrape(gauge: Any, number: Callable[[], float]) -> None:
    """Let `gauge` show what `number()` returns when it is read."""
    gauge.set_function(number)
    _READ[gauge] = number


def refresh_gauges() -> None:
    """Write down what the gauges show now, for processes whose metrics are read from files."""
    for gauge, number in tuple(_READ.items()):
        safely(_refresh, gauge, number)


def _refresh(gauge: Any, number: Callable[[], float]) -> None:
    gauge.set(number())


def safely(record: Callable[..., Any], *args: Any) -> None:
    """Call `record(*args)`. If it raises, that is logged once."""
    try:
        record(*args)
    except Exception:  # noqa: BLE001 - document 001: metrics never raise
        say_once("metrics")


@cache
def say_once(backend: str) -> None:
    """Log, from an `except` block, that the backend for metrics or spans has failed."""
    _log.exception(
        "the %s backend failed; the work continues, %s may be wrong (logged once)", backend, backend
    )
