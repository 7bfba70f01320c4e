"""Values on their way to PostgreSQL, and rows on their way back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from conquiet.jobs.backend import Claim, JobRow
from conquiet.jobs.model import JobState

__all__ = ["COLUMNS", "LEASED", "leased_row", "number_array", "place", "ready_place", "text_array"]

_CASTS = {"attempts": "attempts::text"}
COLUMNS = ", ".join(_CASTS.get(name, f"job.{name}") for name in JobRow._fields)
# What a claim has decided itself need not travel back.
_GIVEN = ("state", "lease_token", "lease_ttl", "lease_worker", "lease_started_at", "finished_at")
LEASED = ", ".join(_CASTS.get(name, f"job.{name}") for name in JobRow._fields if name not in _GIVEN)
_IN_FLIGHT = JobState.IN_FLIGHT.value


def place(claimed: tuple[Any, ...]) -> tuple[int, int]:
    """Priority, then number: RETURNING keeps no order."""
    return claimed[5], claimed[0]


def ready_place(claimed: tuple[Any, ...]) -> tuple[int, int]:
    return claimed[4], claimed[0]


def leased_row(claimed: tuple[Any, ...], claim: Claim, token: str) -> JobRow:
    """The row that `claim_ready` has made, of what it gives and what it was given."""
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
    ) = claimed
    return JobRow(
        job_id,
        queue,
        payload,
        priority,
        _IN_FLIGHT,
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
    )


def text_array(texts: Iterable[str]) -> str:
    """A text[] literal. psycopg looks at every element of a list for what it may need; these are all text.

    None of them holds a NUL, which therefore can stand between them while all are quoted at once.
    """
    quoted = "\0".join(texts).replace("\\", "\\\\").replace('"', '\\"').replace("\0", '","')
    return f'{{"{quoted}"}}'


def number_array(values: Iterable[float]) -> str:
    return f"{{{','.join(map(repr, values))}}}"
