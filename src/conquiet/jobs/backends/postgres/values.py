"""Converts parameters for PostgreSQL, and lists the columns that are read back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from conquiet.jobs.backends.protocol import JobRow, Settlement
from conquiet.jobs.backends.rows import GIVEN

__all__ = [
    "COLUMNS",
    "LEASED",
    "begin_values",
    "end_values",
    "in_ascii",
    "lease_values",
    "number_array",
    "text_array",
]

# Times are read as numbers: PostgreSQL has values that datetime lacks (infinity, years above 9999), and a single one
# would fail the fetch of all rows.
_CASTS = {
    "attempts": "attempts::text",
    **{name: f"date_part('epoch', job.{name})" for name in JobRow._fields if name.endswith("_at")},
}
COLUMNS = ", ".join(_CASTS.get(name, f"job.{name}") for name in JobRow._fields)
LEASED = ", ".join(_CASTS.get(name, f"job.{name}") for name in JobRow._fields if name not in GIVEN)


def text_array(texts: Iterable[str]) -> str:
    """Return a text[] literal. For a list, psycopg would examine the type of every element; these are all text.

    No text contains NUL, so NUL can separate them while all are quoted in one step.
    """
    quoted = "\0".join(texts).replace("\\", "\\\\").replace('"', '\\"').replace("\0", '","')
    return f'{{"{quoted}"}}'


def number_array(values: Iterable[float]) -> str:
    return f"{{{','.join(map(repr, values))}}}"


def lease_values(leases: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Return the parameters for leases, given as (job id, token)."""
    return {
        "ids": text_array(job_id for job_id, _ in leases),
        "tokens": text_array(token for _, token in leases),
    }


def begin_values(leases: Sequence[tuple[str, str]]) -> dict[str, Any]:
    return {f"begin_{name}": value for name, value in lease_values(leases).items()}


def end_values(ends: Iterable[Settlement]) -> dict[str, Any]:
    """Return the parameters that say how leases end."""
    ends = list(ends)
    return {
        "states": [end.state.value for end in ends],
        "outcomes": [end.outcome for end in ends],
        "retries": [int(end.retry) for end in ends],
        "delays": [end.delay for end in ends],
        "errors": [end.error for end in ends],
        "error_types": [end.error_type for end in ends],
        "categories": [end.category for end in ends],
        "tracebacks": [end.traceback for end in ends],
    }


def in_ascii(end: Settlement) -> Settlement:
    """Return `end` with its texts in ASCII, which every encoding contains."""
    texts = ((name, getattr(end, name)) for name in ("error", "error_type", "category", "traceback"))
    return end._replace(
        **{
            name: text.encode("ascii", "backslashreplace").decode()
            for name, text in texts
            if text is not None
        }
    )
