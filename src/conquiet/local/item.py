"""Items of the in-process queue."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, NamedTuple

__all__ = ["QueueItem", "shown", "told_by"]


class QueueItem(NamedTuple):
    """A job with its place in the queue.

    A named tuple, because no other immutable type is created as fast. The times are wall-clock times, for display: setting
    the machine's clock does not change the delay.
    """

    job: Any
    priority_label: str
    priority_value: int
    enqueued_at: datetime
    ready_at: datetime
    seq: int

    def __repr__(self) -> str:  # a job may hold secrets, and a repr may end up in logs
        return f"QueueItem({type(self.job).__name__}, {self.priority_label!r}, seq={self.seq})"


def told_by(job: Any, name: str) -> Any:
    """Return the attribute `name` of `job`, for logs and spans; None if it does not exist or reading it fails.

    Jobs are arbitrary objects. One whose attribute raises (such as a row of a closed session) must not end a worker.
    """
    try:
        return getattr(job, name, None)
    except Exception:  # noqa: BLE001 - see above
        return None


def shown(value: Any, how: Callable[[Any], str] = str) -> str:
    """Return what a job tells as text; it may be any object, and raise when it is shown."""
    try:
        return how(value)
    except Exception:  # noqa: BLE001 - see above
        return f"(an unshowable {type(value).__qualname__})"
