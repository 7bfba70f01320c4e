"""What the in-process queue hands out."""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple

__all__ = ["QueueItem"]


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
