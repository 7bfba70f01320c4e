"""The statement that reads one page of jobs. Its conditions are those that were given, so that each is served by an index."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from conquiet.jobs.backends.protocol import Listing
from conquiet.jobs.model import JobState

__all__ = ["page_statement"]

_FINISHED = (JobState.SUCCEEDED, JobState.FAILED)
_NONE = "(VALUES (NULL))"


def page_statement(statements: Mapping[str, str], listing: Listing) -> tuple[str, dict[str, Any]]:
    """Return the statement and its parameters."""
    values: dict[str, Any] = {}
    order, limit = "DESC" if listing.newest_first else "ASC", f"{listing.limit:d}"
    conditions = []
    for column in ("queue", "task", "correlation_id"):
        if (value := getattr(listing, column)) is not None:
            values[column] = value
            conditions.append(f"{column} = %({column})s")
    if listing.task is not None:
        # The column has the name up to a quote, at most 255 characters: cheap to write, and enough for an index.
        written = msgspec.json.encode(listing.task).decode()
        values |= {"task": written[1:256].partition('"')[0], "begin": f'{{"task":{written}'}
        conditions.append("starts_with(payload, %(begin)s)")
    if listing.after is not None:
        values["after"] = listing.after
        conditions.append(f"seq {'<' if listing.newest_first else '>'} %(after)s")
    for name, compared in (("older_than", "<="), ("newer_than", ">")):
        if (seconds := getattr(listing, name)) is not None:
            values[name] = seconds
            conditions.append(
                f"enqueued_at {compared} (SELECT clock_timestamp()) - %({name})s * interval '1 second'"
            )
    if listing.state is not None:
        values["state"] = listing.state.value
    if listing.correlation_id is not None:
        if listing.state is not None:
            conditions.append("state = %(state)s")
        return _filled(statements["select_correlated"], live=conditions, order=[order], limit=[limit]), values
    # A finished state that is not wanted is not read; with none, the first part of the statement reads nothing.
    states = [f"('{state.value}')" for state in _FINISHED if listing.state in (None, state)] or ["(NULL)"]
    every_queue = listing.queue is None and listing.task is None
    finished = [*conditions, "queue = name.queue"] if every_queue else conditions
    live = conditions
    if listing.state is not None:
        live = ["false"] if listing.state in _FINISHED else [*conditions, "state = %(state)s"]
    filled = _filled(statements["select"], finished=finished, live=live, order=[order], limit=[limit])
    names = f"({statements['finished_queues']})" if every_queue else _NONE
    return filled.replace("{names}", names).replace("{states}", ", ".join(states)), values


def _filled(statement: str, **parts: list[str]) -> str:
    for name, conditions in parts.items():
        statement = statement.replace(f"{{{name}}}", " AND ".join(conditions) or "true")
    return statement
