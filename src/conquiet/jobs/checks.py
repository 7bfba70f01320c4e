"""Arguments, checked before the store is called, and error texts made storable."""

from __future__ import annotations

from collections.abc import Iterable
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


def checked_queues(queues: str | Iterable[str]) -> tuple[str, ...]:
    if not isinstance(queues, Iterable):
        raise JobConfigError(f"queues must be a name or names, not {_shown(queues)}")
    names = (queues,) if isinstance(queues, str) else tuple(queues)
    if not names:
        raise JobConfigError("at least one queue must be named")
    return tuple(dict.fromkeys(checked_name("queue", name) for name in names))


def checked_int(what: str, value: object, at_least: int, at_most: int = 2**31 - 1) -> int:
    if type(value) is not int or not at_least <= value <= at_most:
        raise JobConfigError(f"{what} must be an int from {at_least} to {at_most}, not {_shown(value)}")
    return value


def checked_seconds(what: str, value: Any, *, above_zero: bool = False) -> float:
    fits = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= MAX_SECONDS
    if not fits or (above_zero and value == 0):
        bound = "above 0" if above_zero else "at least 0"
        raise JobConfigError(f"{what} must be a number of seconds, {bound}, not {_shown(value)}")
    return float(value)


def error_text(error: object) -> str:
    """The text of `error` as every database can hold it: no NUL, no lone surrogates, not endless, no passwords."""
    try:
        text = str(error)
    except Exception as unshowable:  # noqa: BLE001 - somebody's __str__ must not keep the job from failing
        text = f"(its text cannot be shown: {type(unshowable).__qualname__})"
    # Cut twice: a password that the second cut halves was whole, and so was found, before it.
    text = redact(text[: MAX_ERROR + 512])[:MAX_ERROR].replace("\0", "\N{SYMBOL FOR NULL}")
    return text.encode("utf-8", "replace").decode()


def _shown(value: object) -> str:
    try:
        text = ascii(value)
    except Exception:  # noqa: BLE001 - a number of 5,000 digits has no text, nor need somebody's object have one
        text = f"an unshowable {type(value).__qualname__}"
    return text if len(text) <= 60 else text[:60] + "…"
