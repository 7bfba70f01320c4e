"""Checks of arguments and settings, made before they are used.

Each returns the value, or raises `error`, the configuration error of the calling room.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

__all__ = [
    "MAX_INT",
    "MAX_NAME",
    "MAX_SECONDS",
    "checked_int",
    "checked_name",
    "checked_queues",
    "checked_seconds",
]

MAX_INT = 2**31 - 1  # the largest value of an integer column in PostgreSQL
MAX_NAME = 255
MAX_SECONDS = 100 * 366 * 86_400.0  # a century: more is a mistake, and some databases overflow


def checked_int(
    what: str, value: object, at_least: int, at_most: int | None = None, *, error: type[Exception]
) -> int:
    """An int in this range; a bool is not an int."""
    if type(value) is int and at_least <= value and (at_most is None or value <= at_most):
        return value
    bounds = f"of at least {at_least}" if at_most is None else f"from {at_least} to {at_most}"
    raise error(f"{what} must be an int {bounds}, not {_shown(value)}")


def checked_name(what: str, value: object, *, error: type[Exception]) -> str:
    """The name of a queue or a worker, or an id: text that every database can store and index."""
    if not isinstance(value, str) or not value:
        raise error(f"{what} must be a non-empty str, not {_shown(value)}")
    if len(value) > MAX_NAME:
        raise error(f"{what} must be at most {MAX_NAME} characters, not {len(value)}: {_shown(value)}")
    if "\0" in value or any("\ud800" <= character <= "\udfff" for character in value):
        raise error(f"{what} must not hold NUL or lone surrogates: {_shown(value)}")
    return value


def checked_queues(queues: str | Iterable[str], *, error: type[Exception]) -> tuple[str, ...]:
    """One queue or several, without duplicates."""
    if not isinstance(queues, Iterable):
        raise error(f"queues must be a name or names, not {_shown(queues)}")
    names = (queues,) if isinstance(queues, str) else tuple(queues)
    if not names:
        raise error("at least one queue must be named")
    return tuple(dict.fromkeys(checked_name("queue", name, error=error) for name in names))


def checked_seconds(
    what: str, value: Any, *, above_zero: bool = False, or_negative: bool = False, error: type[Exception]
) -> float:
    """A number of seconds, at most a century."""
    at_least = -MAX_SECONDS if or_negative else 0
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if number and at_least <= value <= MAX_SECONDS and not (above_zero and value == 0):
        return float(value)
    bound = "" if or_negative else ", above 0" if above_zero else ", at least 0"
    limit = f": at most {MAX_SECONDS:.0f} (a century)" if number and value > MAX_SECONDS else ""
    raise error(f"{what} must be a number of seconds{bound}, not {_shown(value)}{limit}")


def _shown(value: object) -> str:
    try:
        text = ascii(value)
    except Exception:  # noqa: BLE001 - Python refuses to print an int of 5,000 digits, and a __repr__ may raise anything
        text = f"an unshowable {type(value).__qualname__}"
    return text if len(text) <= 60 else text[:60] + "…"
