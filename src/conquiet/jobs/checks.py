"""Arguments, checked before the store is called, and error texts made storable."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from conquiet.errors import JobConfigError, redact

__all__ = ["checked_int", "checked_name", "checked_queues", "checked_seconds", "error_text"]

MAX_NAME = 255
MAX_SECONDS = 100 * 366 * 86_400.0  # a century: later than that is a mistake, and some databases overflow
MAX_ERROR = 8_192


def checked_name(what: str, value: object) -> str:
    """A queue, a worker or an id: data, so anything that every database can hold and index."""
    if not isinstance(value, str) or not value:
        raise JobConfigError(f"{what} must be a non-empty str, not {_shown(value)}")
    if len(value) > MAX_NAME:
        raise JobConfigError(
            f"{what} must be at most {MAX_NAME} characters, not {len(value)}: {_shown(value)}"
        )
    if "\0" in value or any("\ud800" <= character <= "\udfff" for character in value):
        raise JobConfigError(f"{what} must not hold NUL or lone surrogates: {_shown(value)}")
    return value


def checked_queues(queues: str | Sequence[str]) -> tuple[str, ...]:
    names = (queues,) if isinstance(queues, str) else tuple(queues)
    if not names:
        raise JobConfigError("at least one queue must be named")
    return tuple(dict.fromkeys(checked_name("queue", name) for name in names))


def checked_int(what: str, value: object, at_least: int, at_most: int = 2**31 - 1) -> int:
    if type(value) is not int or not at_least <= value <= at_most:
        raise JobConfigError(f"{what} must be an int from {at_least} to {at_most}, not {_shown(value)}")
    return value


def checked_seconds(what: str, value: Any, *, above_zero: bool = False) -> float:
    fits = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not fits or value < 0 or (above_zero and value == 0) or value > MAX_SECONDS:
        bound = "above 0" if above_zero else "at least 0"
        raise JobConfigError(f"{what} must be a number of seconds, {bound}, not {_shown(value)}")
    return float(value)


def error_text(text: str) -> str:
    """`text` as every database can hold it: no NUL, no lone surrogates, no endless length, no passwords."""
    text = redact(text[:MAX_ERROR]).replace("\0", "\N{SYMBOL FOR NULL}")
    return text.encode("utf-8", "replace").decode()


def _shown(value: object) -> str:
    text = ascii(value)
    return text if len(text) <= 60 else text[:60] + "…"
