"""Rows that somebody has damaged, writing into the table past the store: what is wrong with them, and what is left.

A sound row costs nothing here: `job_of` makes a job of it, and stumbles over any other.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from conquiet import payload
from conquiet.errors import PayloadError
from conquiet.jobs.backends.protocol import JobRow, Settlement
from conquiet.jobs.backends.rows import STATES, as_datetime, attempts_of, job_of
from conquiet.jobs.error_text import error_text
from conquiet.jobs.model import Job, JobState

__all__ = ["UNREADABLE", "Unreadable", "failed", "shown_job", "shown_name"]

# What `job_of` raises of a damaged row: no JSON, no number, no time, a time out of range, no state, nested too deep.
UNREADABLE = (
    *(PayloadError, msgspec.MsgspecError, TypeError, ValueError, ArithmeticError, LookupError, OSError),
    RecursionError,
)


class Unreadable(NamedTuple):
    """In the place of a value of which the driver could make nothing."""

    raw: str | bytes
    reason: str


def shown_job(row: JobRow) -> Job:
    """The job, for people: one that somebody damaged must not hide all the others. Its `error` is what is wrong."""
    try:
        job = job_of(row)
        _text(row.queue)
        for text in (row.lease_token, row.lease_worker):
            _text_or_none(text)
        _seconds_or_none(row.lease_ttl)
    except UNREADABLE:
        left, wrong = _mended(row)
        return job_of(left._replace(error=wrong))
    return job


def shown_name(name: Any) -> str:
    """The name of a queue, as a key: one that is no text must not pass for another that is."""
    if isinstance(name, str):
        return name
    return repr(name.raw if isinstance(name, Unreadable) else name)


def failed(row: JobRow, error: BaseException) -> Settlement:
    """The end of a lease whose job no worker can run, because `job_of` raised `error`."""
    assert row.lease_token is not None
    key: Any = row.id
    if isinstance(key, Unreadable):
        key = key.raw
    return Settlement(
        key,
        row.lease_token,
        JobState.FAILED,
        "failed",
        error=_mended(row)[1],
        error_type="PayloadError" if isinstance(error, PayloadError) else "DamagedRow",
    )


def _mended(row: JobRow) -> tuple[JobRow, str]:
    """The row with something readable in the place of all that is not, and what that was."""
    values, wrong = row._asdict(), list[str]()
    for column, value in zip(JobRow._fields, row, strict=True):
        check, otherwise = _COLUMNS[column]
        try:
            check(value)
        except UNREADABLE as error:
            reason = value.reason if isinstance(value, Unreadable) else str(error)
            wrong.append(f"its {column} cannot be read: {reason}")
            values[column] = otherwise(value)
    for column in _required_times(values):
        if values[column] is None:
            if row._asdict()[column] is None:
                wrong.append(f"its {column} is missing")
            values[column] = 0.0
    return JobRow(**values), error_text("; ".join(wrong) or "its row cannot be read")


def _required_times(values: dict[str, Any]) -> list[str]:
    if values["state"] == JobState.SUCCEEDED:
        return ["enqueued_at", "lease_started_at", "finished_at"]
    if values["state"] == JobState.IN_FLIGHT and values["lease_token"] is not None:
        return ["enqueued_at", "lease_expires_at"]
    return ["enqueued_at"]


def _text(value: Any) -> None:
    if not isinstance(value, str):
        raise TypeError(f"a text was expected, not {_kind(value)}")


def _text_or_none(value: Any) -> None:
    if value is not None:
        _text(value)


def _number(value: Any) -> None:
    if type(value) is not int:
        raise TypeError(f"a whole number was expected, not {_kind(value)}")


def _seconds_or_none(value: Any) -> None:
    if not (value is None or (isinstance(value, float | int) and math.isfinite(value))):
        raise TypeError(f"a number of seconds was expected, not {_kind(value)}")


def _time_or_none(value: Any) -> None:
    if value is None:
        return
    try:
        as_datetime(value)
    except UNREADABLE:
        raise ValueError(f"a time of the years 1 to 9999 was expected, not {_kind(value)}") from None


def _state(value: Any) -> None:
    _text(value)
    if value not in STATES:
        raise ValueError(f"it is none of {', '.join(STATES)}")


def _kind(value: Any) -> str:
    if isinstance(value, float | int):
        return f"the number {value!r}"
    kinds = {str: "a text", bytes: "bytes", type(None): "nothing"}
    return kinds.get(type(value), type(value).__qualname__)


def _as_text(value: Any) -> str:
    raw = value.raw if isinstance(value, Unreadable) else value
    return raw.decode(errors="replace") if isinstance(raw, bytes) else str(raw)


_Column = tuple[Callable[[Any], object], Callable[[Any], object]]
# For each column what raises where it cannot be read, and what is shown then.
_TEXT: _Column = (_text, _as_text)
_TEXT_OR_NONE: _Column = (_text_or_none, _as_text)
_NUMBER: _Column = (_number, lambda _: 0)
_TIME: _Column = (_time_or_none, lambda _: None)
_COLUMNS: dict[str, _Column] = {
    "id": _TEXT,
    "queue": _TEXT,
    "payload": (payload.decode, lambda _: "{}"),
    "priority": _NUMBER,
    "state": (_state, lambda _: JobState.FAILED.value),  # no worker will ever run it
    "retries": _NUMBER,
    "max_retries": _NUMBER,
    "retry_at": _TIME,
    "enqueued_at": _TIME,
    "correlation_id": _TEXT_OR_NONE,
    "lease_token": _TEXT_OR_NONE,
    "lease_version": _NUMBER,
    "lease_expires_at": _TIME,
    "lease_ttl": (_seconds_or_none, lambda _: 0.0),
    "lease_worker": _TEXT_OR_NONE,
    "lease_started_at": _TIME,
    "lease_expiries": _NUMBER,
    "error": _TEXT_OR_NONE,
    "finished_at": _TIME,
    "attempts": (attempts_of, lambda _: "[]"),
}
