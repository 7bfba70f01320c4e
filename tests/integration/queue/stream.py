"""The stream as a plain Redis client sees it, and a way to wait for something without long sleeps."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import redis

from tests.integration.queue.variants import GROUP, STREAM


class Stream:
    """Everything that a test does to the stream past the queue."""

    def __init__(self, raw: redis.Redis, key: str = STREAM, group: str = GROUP) -> None:
        self.raw: Any = raw  # its annotations allow bytes, str and int; this one decodes to str
        self.key = key
        self.group = group

    def add(self, *data: str | bytes) -> list[str]:
        """Add entries in the right format, without the queue's checks."""
        return [self.raw.xadd(self.key, {"data": item}) for item in data]

    def entries(self) -> dict[str, dict[str, str]]:
        return dict(self.raw.xrange(self.key))

    def pending(self) -> dict[str, str]:
        """Pending ids, and the holder of each."""
        rows = self.raw.xpending_range(self.key, self.group, "-", "+", 100_000)
        return {row["message_id"]: row["consumer"] for row in rows}

    def deliveries(self) -> dict[str, int]:
        rows = self.raw.xpending_range(self.key, self.group, "-", "+", 100_000)
        return {row["message_id"]: row["times_delivered"] for row in rows}

    def set_idle(self, messages: Iterable[Any], idle_ms: int) -> None:
        """Make pending entries as old as a test needs: Redis keeps the time, so no test has to wait."""
        holders = self.pending()
        for message in messages:
            arguments = (self.key, self.group, holders[message.id], 0, message.id, "IDLE", idle_ms, "JUSTID")
            self.raw.execute_command("XCLAIM", *arguments)

    def wait_for_reader(self, readers: int = 1) -> None:
        """Wait until this many clients are in a blocking read."""
        wait_until(lambda: self.raw.info("clients")["blocked_clients"] == readers, "a blocked reader")


def wait_until(condition: Callable[[], object], what: str, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds:g} s for {what}"
        time.sleep(0.002)
