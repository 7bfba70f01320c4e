"""What the in-process queue hands out."""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple

__all__ = ["QueueItem", "told_by"]


class QueueItem(NamedTuple):
    """A job with its place in the queue.

    A named tuple because nothing else that cannot be changed is made as fast. The times are wall time, to be
    shown: if somebody sets the machine's clock, `ready_at` moves against it, and the delay stays what it was.
    """

    job: Any
    priority_label: str
    priority_value: int
    enqueued_at: datetime
    ready_at: datetime
    seq: int

    def __repr__(self) -> str:  # a job may hold secrets, and a repr ends in logs
        return f"QueueItem({type(self.job).__name__}, {self.priority_label!r}, seq={self.seq})"


def told_by(job: Any, name: str) -> Any:
    """What `job` says of itself, for logs and spans; None if it has no such attribute, or cannot be asked.

    Jobs are anybody's objects. One that fails at a look, as a row whose session is closed does, must not end a worker.
    """
    try:
        return getattr(job, name, None)
    except Exception:  # noqa: BLE001 - see above
        return None
