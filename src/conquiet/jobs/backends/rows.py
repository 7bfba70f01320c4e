"""Converts between the rows that back ends store and the public `Job`."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Container, Iterable, Sequence
from typing import Any

import msgspec

from conquiet import payload
from conquiet.clock import on_grid, utc
from conquiet.errors import DuplicateJobError
from conquiet.jobs.backends.protocol import Claim, JobRow, Listing, NewRow, Settlement
from conquiet.jobs.model import Attempt, Job, JobState, Lease

__all__ = [
    "EXPIRED_ERROR",
    "GIVEN",
    "RANKED",
    "STATES",
    "attempt_json",
    "attempts_of",
    "due_at",
    "duplicate_error",
    "duplicates",
    "is_listed",
    "job_of",
    "leased_row",
    "new_ids",
    "new_row",
]

EXPIRED_ERROR = "its lease expired %s times: its worker died or lost the store each time"
IN_FLIGHT, SUCCEEDED = JobState.IN_FLIGHT.value, JobState.SUCCEEDED.value
# Columns whose values the claim of Ready jobs sets itself, so that the database need not return them.
GIVEN = ("state", "lease_token", "lease_ttl", "lease_worker", "lease_started_at", "finished_at")
# A claim ranks so many delayed jobs that are due exactly, by age, among the others with the same priority. Of more than
# that, those that have been due for longest come first.
RANKED = 100
STATES = {state.value: state for state in JobState}


class _StoredAttempt(msgspec.Struct, array_like=True, gc=False):
    """An element of the stored array. It may be shorter than this, from an older release, or longer, from a newer one."""

    number: int
    worker: str
    started_at: float
    ended_at: float
    outcome: str
    category: str | None
    error_type: str | None
    error: str | None
    traceback: str | None = None


_STORED_ATTEMPTS = msgspec.json.Decoder(list[_StoredAttempt])


def new_row(queue: str, row: NewRow, now: float) -> JobRow:
    return JobRow(
        id=row.id,
        queue=queue,
        payload=row.payload,
        priority=row.priority,
        state=JobState.READY.value,
        retries=0,
        max_retries=row.max_retries,
        retry_at=due_at(row, now),
        enqueued_at=now,
        correlation_id=row.correlation_id,
        lease_token=None,
        lease_version=0,
        lease_expires_at=None,
        lease_ttl=None,
        lease_worker=None,
        lease_started_at=None,
        lease_expiries=0,
        error=None,
        finished_at=None,
        attempts="[]",
    )


def due_at(row: NewRow, now: float) -> float | None:
    """When a new job is due by the store's clock; None: immediately."""
    if row.at is not None:
        return on_grid(row.at) if row.at > now else None
    return on_grid(now + row.delay) if row.delay else None


def job_of(row: JobRow) -> Job:
    """Return the job in a row. Raise one of `damage.UNREADABLE` if the row is damaged."""
    # Hot path: a field access on a named tuple costs as much as building a lease, so unpack all fields in one step.
    (
        job_id,
        queue,
        text,
        priority,
        state,
        retries,
        max_retries,
        retry_at,
        enqueued_at,
        correlation_id,
        token,
        version,
        expires_at,
        ttl,
        worker,
        _,
        lease_expiries,
        error,
        _,
        attempts,
        begun,
    ) = row
    # JobRow declares the types that we write. Others may write to the table, and SQLite accepts any type in a column.
    if not (
        isinstance(job_id, str)  # type: ignore[redundant-expr]
        and type(priority) is int
        and type(retries) is int
        and type(max_retries) is int
        and type(version) is int
        and type(lease_expiries) is int
        and (correlation_id is None or isinstance(correlation_id, str))  # type: ignore[redundant-expr]
        and (error is None or isinstance(error, str))
    ):
        raise TypeError("a column holds a value of the wrong type")
    lease = None
    if token is not None and state == IN_FLIGHT:
        lease = Lease(token, version, utc(expires_at), ttl or 0.0, worker or "", bool(begun))  # type: ignore[arg-type]
    return Job(
        job_id,
        queue,
        payload.decode(text),
        priority,
        STATES[state],
        retries,
        max_retries,
        None if retry_at is None else utc(retry_at),
        utc(enqueued_at),
        lease,
        error,
        () if attempts == "[]" and state != SUCCEEDED else _attempts(row),
        correlation_id,
        lease_expiries,
    )


def attempts_of(stored: str | bytes) -> tuple[Attempt, ...]:
    return tuple(
        Attempt(
            one.number,
            one.worker,
            utc(one.started_at),
            utc(one.ended_at),
            one.outcome,
            one.category,
            one.error_type,
            one.error,
            one.traceback,
        )
        for one in _STORED_ATTEMPTS.decode(stored)
    )


def _attempts(row: JobRow) -> tuple[Attempt, ...]:
    written = attempts_of(row.attempts)
    if row.state != SUCCEEDED:
        return written
    # An ack writes no history, to be fast: the last attempt is built from columns of the row.
    started_at, ended_at = utc(row.lease_started_at), utc(row.finished_at)  # type: ignore[arg-type]
    return (*written, Attempt(row.lease_version, row.lease_worker or "", started_at, ended_at, "succeeded"))


def attempt_json(number: int, worker: str, started: float, ended: float, end: Settlement) -> str:
    """Return one attempt as an element of the stored array."""
    written = [number, worker, started, ended, end.outcome, end.category, end.error_type, end.error]
    return json.dumps([*written, end.traceback] if end.traceback else written, ensure_ascii=False)


def leased_row(claimed: tuple[Any, ...], claim: Claim, token: str) -> JobRow:
    """Build the row of a job claimed by `claim_ready`: from what that returns (the job's number and all columns but
    `GIVEN`) and from its parameters."""
    (
        seq,
        job_id,
        queue,
        payload,
        priority,
        retries,
        max_retries,
        retry_at,
        enqueued_at,
        correlation_id,
        version,
        expires_at,
        expiries,
        error,
        attempts,
        begun,
    ) = claimed
    values = (
        job_id,
        queue,
        payload,
        priority,
        IN_FLIGHT,
        retries,
        max_retries,
        retry_at,
        enqueued_at,
        correlation_id,
        f"{token}{seq}",
        version,
        expires_at,
        claim.ttl,
        claim.worker,
        None,
        expiries,
        error,
        None,
        attempts,
        begun,
    )
    return tuple.__new__(JobRow, values)  # hot path: the same as JobRow(), without passing twenty arguments


def duplicates(ids: Iterable[str], taken: Container[str]) -> list[str]:
    """Return the `ids` that are taken, and repetitions within `ids`."""
    seen: set[str] = set()
    return [one for one in ids if one in taken or one in seen or seen.add(one)]  # type: ignore[func-returns-value]


def duplicate_error(double: Sequence[str]) -> DuplicateJobError:
    return DuplicateJobError(
        f"a job with id {double[0]!r} exists (or is twice in this call); nothing was enqueued", double
    )


def task_of(text: str | bytes) -> str | None:
    """Return the task that a payload calls, as an app writes it: by its first key."""
    if text[:9] not in ('{"task":"', b'{"task":"'):
        return None
    return _CALLS.decode(text).task


def is_listed(seq: int, row: JobRow, listing: Listing, now: float) -> bool:
    """Return whether a listing shows the job with this number."""
    after, older, newer = listing.after, listing.older_than, listing.newer_than
    return (
        (listing.state is None or row.state == listing.state)
        and (listing.queue is None or row.queue == listing.queue)
        and (listing.task is None or task_of(row.payload) == listing.task)
        and (listing.correlation_id is None or row.correlation_id == listing.correlation_id)
        and (after is None or (seq < after if listing.newest_first else seq > after))
        and (older is None or row.enqueued_at <= now - older)
        and (newer is None or row.enqueued_at > now - newer)
    )


class _Call(msgspec.Struct):
    task: str


_CALLS = msgspec.json.Decoder(_Call)


def new_ids(count: int) -> list[str]:
    """Return UUIDs of version 7, which begin with the time: increasing ids keep a database's index compact."""
    moment = f"{time.time_ns() // 1_000_000:012x}"
    begin = f"{moment[:8]}-{moment[8:]}-7"
    # Random digits are drawn once for all ids: 20 for each, of which 19 are used.
    digits = os.urandom(10 * count).hex()
    return [
        f"{begin}{digits[n : n + 3]}-{_VARIANTS[digits[n + 3]]}{digits[n + 4 : n + 7]}-{digits[n + 7 : n + 19]}"
        for n in range(0, 20 * count, 20)
    ]


_VARIANTS = {
    f"{digit:x}": f"{digit & 3 | 8:x}" for digit in range(16)
}  # the two fixed bits of the UUID variant
