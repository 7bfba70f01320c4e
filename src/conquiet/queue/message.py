"""Messages, malformed entries and statistics of a stream."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

__all__ = ["BacklogStats", "ClaimedMessages", "MalformedEntry", "QueueMessage"]


@dataclass(frozen=True, slots=True)
class QueueMessage:
    """One delivered entry. It is pending for its consumer until it is acknowledged."""

    id: str
    payload: dict[str, Any] = field(repr=False)  # it may hold secrets, and a repr may end up in logs
    stream: str
    group: str

    def __hash__(self) -> int:
        return hash((self.stream, self.group, self.id))


@dataclass(frozen=True, slots=True)
class MalformedEntry:
    """A delivered entry that breaks the format. Its content is not shown; `size` is its length in bytes."""

    id: str
    stream: str
    group: str
    reason: str
    size: int


class ClaimedMessages(list[QueueMessage]):
    """The messages of one `claim_stale`; `gone` are ids that were pending but whose entries no longer exist."""

    def __init__(self, messages: Iterable[QueueMessage] = (), gone: Iterable[str] = ()) -> None:
        super().__init__(messages)
        self.gone = list(gone)


@dataclass(frozen=True, slots=True)
class BacklogStats:
    """How full a stream and its group are. `lag` and `pending` are of one moment, the rest of about the same.

    `lag` (entries not yet delivered) is None if Redis does not know it, for example after entries were deleted.
    """

    length: int
    lag: int | None
    pending: int
    pending_by_consumer: dict[str, int]
    oldest_pending_id: str | None
    oldest_pending_idle_ms: int | None
