"""Damaged rows: rows that something other than the store has written to the table.

A damaged row is set aside: it becomes Failed, with the reason. There are two ways to notice it. Either `job_of` cannot
convert it to a job, or a statement fails on it together with the other rows of the batch; these are then processed one
by one. Undamaged rows cost nothing extra.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, get_type_hints

import msgspec

from conquiet import payload
from conquiet.clock import utc
from conquiet.errors import DamagedRowError, PayloadError
from conquiet.flow import Flow
from conquiet.jobs.backends.protocol import Backend, Claim, JobRow, Settlement
from conquiet.jobs.backends.rows import STATES, attempts_of, job_of
from conquiet.jobs.error_text import error_text
from conquiet.jobs.model import Job, JobState

__all__ = ["UNREADABLE", "claimed", "damage", "extended", "settled", "shown_job"]

# What `job_of` raises for a damaged row: not JSON, not a number, not a time, out of range, no such state, too deep.
UNREADABLE = (
    *(PayloadError, msgspec.MsgspecError, TypeError, ValueError, ArithmeticError, LookupError, OSError),
    RecursionError,
)
_TYPES = {**get_type_hints(JobRow), "payload": Any}


def claimed(backend: Backend, claim: Claim) -> Flow[tuple[list[JobRow], bool]]:
    """Call `backend.claim`. If it fails on a row, claim jobs singly until that row is next, and set it aside."""
    try:
        return (yield from backend.claim(claim))
    except DamagedRowError as error:
        if claim.limit == 1:
            return [], (yield from backend.set_aside_next(claim.queues, _reason(error)))
    return (yield from claimed(backend, claim._replace(limit=1)))


def settled(
    backend: Backend, ends: Sequence[Settlement], begins: Sequence[tuple[str, str]] = ()
) -> Flow[set[str]]:
    """Call `backend.settle`. If it fails on a row, set that row aside and treat its lease as not current."""
    try:
        return (yield from backend.settle(ends, None, begins))
    except DamagedRowError as error:
        if len(ends) == 1 and not begins:
            yield from backend.set_aside(ends[0].job_id, ends[0].token, _reason(error))
            return set()
    current: set[str] = set()
    if begins:
        current |= yield from backend.settle((), None, begins)
    for end in ends:
        current |= yield from settled(backend, [end])
    return current


def extended(backend: Backend, leases: Sequence[tuple[str, str]]) -> Flow[dict[str, float]]:
    """Call `backend.heartbeat`. If it fails on a row, do not extend that lease."""
    try:
        return (yield from backend.heartbeat(leases))
    except DamagedRowError:
        if len(leases) == 1:
            return {}
    current: dict[str, float] = {}
    for lease in leases:
        current |= yield from extended(backend, [lease])
    return current


def damage(row: JobRow) -> str:
    """Return what is wrong with a row that `job_of` cannot read: the first bad column and the reason."""
    for column, value in zip(JobRow._fields, row, strict=True):
        try:
            _read(column, value)
        except UNREADABLE as error:
            return error_text(f"its {column} cannot be read: {error}")
    return "its row cannot be read: its columns do not fit together"


def shown_job(row: JobRow) -> Job:
    """Return the job in a row, for display. A damaged row must not hide the others: its `error` says what is wrong."""
    try:
        job = job_of(row)
        for column in (
            "queue",
            "lease_token",
            "lease_worker",
            "lease_ttl",
        ):  # job_of does not check these: it is a hot path
            _read(column, getattr(row, column))
        return job
    except UNREADABLE:
        state = STATES.get(row.state, JobState.FAILED)
        return Job(_text(row.id), _text(row.queue), {}, 0, state, 0, 0, None, utc(0.0), error=damage(row))


def _read(column: str, value: Any) -> None:
    msgspec.convert(value, _TYPES[column])
    if column == "payload":
        payload.decode(value)
    elif column == "attempts":
        attempts_of(value)
    elif column == "state" and value not in STATES:
        raise ValueError(f"it is none of {', '.join(STATES)}")
    elif column == "lease_ttl" and value is not None and not math.isfinite(value):
        raise ValueError("a number of seconds was expected")
    elif column.endswith("_at") and value is not None:
        try:
            utc(value)
        except UNREADABLE:
            raise ValueError("a time of the years 1 to 9999 was expected") from None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else repr(value)


def _reason(error: DamagedRowError) -> str:
    return error_text(f"its row cannot be read: {error.__cause__ or error}")
