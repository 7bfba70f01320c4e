"""What `list` of a store takes, and how it is checked."""

from __future__ import annotations

from typing import TypedDict

from conquiet.checks import MAX_INT, checked_int, checked_name, checked_seconds
from conquiet.errors import JobConfigError
from conquiet.jobs.backends.protocol import Listing
from conquiet.jobs.model import JobState

__all__ = ["ListOptions", "checked_listing", "checked_queue"]


class ListOptions(TypedDict, total=False):
    """Which jobs a page shows."""

    state: JobState | None
    queue: str | None
    task: str | None  # the name of the task that a job calls
    correlation_id: str | None
    newest_first: bool
    limit: int  # 100
    after: int | None  # `next` of the page before
    older_than: float | None  # enqueued at least so many seconds ago
    newer_than: float | None


def checked_listing(listing: Listing) -> Listing:
    checked_int("limit", listing.limit, 1, MAX_INT, error=JobConfigError)
    if listing.after is not None:
        checked_int("after", listing.after, 0, 2**63 - 1, error=JobConfigError)
    for what in ("queue", "task", "correlation_id"):
        if (name := getattr(listing, what)) is not None:
            checked_name(what, name, error=JobConfigError)
    for what in ("older_than", "newer_than"):
        if (seconds := getattr(listing, what)) is not None:
            checked_seconds(what, seconds, error=JobConfigError)
    if listing.state is None:
        return listing
    if listing.state not in tuple(JobState):
        raise JobConfigError(f"state must be one of {', '.join(JobState)}, not {listing.state!r}")
    return listing._replace(state=JobState(listing.state))


def checked_queue(queue: str | None) -> str | None:
    return None if queue is None else checked_name("queue", queue, error=JobConfigError)
