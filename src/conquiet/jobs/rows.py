"""Rows as back ends store them, and jobs as people see them."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from conquiet import payload
from conquiet.clock import utc
from conquiet.jobs.backend import JobRow, Settlement
from conquiet.jobs.model import Attempt, Job, JobState, Lease

__all__ = ["attempt_json", "job_of"]

_STATES = {state.value: state for state in JobState}


def job_of(row: JobRow) -> Job:
    lease = None
    if row.state == JobState.IN_FLIGHT and row.lease_token is not None:
        assert row.lease_expires_at is not None
        lease = Lease(
            row.lease_token,
            row.lease_version,
            _at(row.lease_expires_at),
            row.lease_ttl or 0.0,
            row.lease_worker or "",
        )
    return Job(
        row.id,
        row.queue,
        payload.decode(row.payload),
        row.priority,
        _STATES[row.state],
        row.retries,
        row.max_retries,
        None if row.retry_at is None else _at(row.retry_at),
        _at(row.enqueued_at),
        lease,
        row.error,
        _attempts(row),
        row.correlation_id,
        row.lease_expiries,
    )


def _at(time: Any) -> datetime:
    return time if isinstance(time, datetime) else utc(time)


def _attempts(row: JobRow) -> tuple[Attempt, ...]:
    written = () if row.attempts == "[]" else tuple(_attempt(item) for item in json.loads(row.attempts))
    if row.state != JobState.SUCCEEDED:
        return written
    # The hot path writes no history: what an ack would add stands in the row.
    assert row.lease_started_at is not None
    assert row.finished_at is not None
    started_at, ended_at = _at(row.lease_started_at), _at(row.finished_at)
    return (*written, Attempt(row.lease_version, row.lease_worker or "", started_at, ended_at, "succeeded"))


def _attempt(item: list[object]) -> Attempt:
    number, worker, started, ended, outcome, category, error_type, error = item
    return Attempt(number, worker, utc(started), utc(ended), outcome, category, error_type, error)  # type: ignore[arg-type]


def attempt_json(number: int, worker: str, started: float, ended: float, end: Settlement) -> str:
    """One attempt as an element of the stored array."""
    return json.dumps(
        [number, worker, started, ended, end.outcome, end.category, end.error_type, end.error],
        ensure_ascii=False,
    )
