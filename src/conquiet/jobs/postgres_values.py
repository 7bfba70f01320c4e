"""Values on their way to PostgreSQL, and rows on their way back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from conquiet.jobs.backend import JobRow
from conquiet.jobs.rows import GIVEN

__all__ = ["COLUMNS", "LEASED", "number_array", "place", "text_array"]

_CASTS = {"attempts": "attempts::text"}
COLUMNS = ", ".join(_CASTS.get(name, f"job.{name}") for name in JobRow._fields)
LEASED = ", ".join(_CASTS.get(name, f"job.{name}") for name in JobRow._fields if name not in GIVEN)


def place(claimed: tuple[Any, ...]) -> tuple[int, int]:
    """Priority, then number: RETURNING keeps no order."""
    return claimed[5], claimed[0]


def text_array(texts: Iterable[str]) -> str:
    """A text[] literal. psycopg looks at every element of a list for what it may need; these are all text.

    None of them holds a NUL, which therefore can stand between them while all are quoted at once.
    """
    quoted = "\0".join(texts).replace("\\", "\\\\").replace('"', '\\"').replace("\0", '","')
    return f'{{"{quoted}"}}'


def number_array(values: Iterable[float]) -> str:
    return f"{{{','.join(map(repr, values))}}}"
