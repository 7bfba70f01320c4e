"""Recovery: passes over the pending list, which handle what has been idle for too long."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from conquiet.flow import Flow, Signal, Sleep
from conquiet.observe import SafeLogger
from conquiet.queue.config import QueueConfig
from conquiet.queue.flows.operations import StreamOperations
from conquiet.queue.message import MalformedEntry, QueueMessage

__all__ = ["Recovery"]

_log = SafeLogger("conquiet.queue")

_MANY: Final = 1_000  # ids per look once entries turn out to be gone: they cost nothing but the look
_NAMED: Final = 20  # ids in a log line
_PATIENCE: Final = 12  # passes in a row given up to new messages before that is a warning

Handle = Callable[[QueueMessage | MalformedEntry], Flow[None]]


class Recovery:
    """The passes of one `run_recovery` or of one command."""

    def __init__(
        self, operations: StreamOperations, config: QueueConfig, stopped: Signal, handle: Handle
    ) -> None:
        self._operations = operations
        self._config = config
        self._stopped = stopped
        self._handle = handle
        self._gave_way = 0

    def run(self, interval_ms: int, count: int) -> Flow[None]:
        while not self._stopped.is_set():
            yield from self.one_pass(count)
            yield Sleep(interval_ms / 1000, self._stopped)

    def one_pass(self, count: int, *, most: int | None = None) -> Flow[int]:
        """Go through the pending list once, `count` ids per look, and return how many messages were handled.

        Before each look new messages have the right of way, and end the pass. With `most`, the pass ends after so many
        messages instead, whether there are new ones or not.
        """
        handled = 0
        gone: list[str] = []
        after: str | None = None
        size = count
        try:
            while not self._stopped.is_set():
                if most is None and (yield from self._gives_way()):
                    break
                ids = yield from self._operations.stale(self._config.claim_idle_ms, size, after)
                gone_now: set[str] = set()
                for position, entry_id in enumerate(ids):
                    if self._stopped.is_set() or handled == most:
                        return handled
                    if entry_id in gone_now:
                        continue
                    # One at a time: messages claimed in advance would become stale again while they wait.
                    entry = yield from self._claimed(entry_id)
                    if entry is not None:
                        yield from self._handle(entry)
                        handled += 1
                    else:
                        dropped = yield from self._dropped(ids[position:])
                        gone += dropped
                        gone_now.update(dropped)
                if len(ids) < size:
                    break
                after = ids[-1]
                size = _MANY if gone_now else count
        finally:
            self._tell(gone)
        return handled

    def _claimed(self, entry_id: str) -> Flow[QueueMessage | MalformedEntry | None]:
        messages, malformed = yield from self._operations.claim([entry_id], self._config.claim_idle_ms)
        return messages[0] if messages else malformed[0] if malformed else None

    def _dropped(self, ids: list[str]) -> Flow[list[str]]:
        """Return the `ids` whose entries are gone, and take them out of the pending list, which a claim does."""
        gone = yield from self._operations.gone(ids)
        if gone:
            yield from self._operations.claim(gone, self._config.claim_idle_ms)
        return gone

    def _gives_way(self) -> Flow[bool]:
        if not (yield from self._operations.has_new()):
            self._gave_way = 0
            return False
        self._gave_way += 1
        if self._gave_way in (1, _PATIENCE):
            _log.log(
                logging.INFO if self._gave_way == 1 else logging.WARNING,
                "stream %r, group %r: nothing is recovered while new messages wait to be read (%d looks in a row); "
                "claim_stale() recovers regardless",
                self._config.stream_key,
                self._config.consumer_group,
                self._gave_way,
            )
        return True

    def _tell(self, gone: list[str]) -> None:
        if gone:
            more = f" and {len(gone) - _NAMED} more" if len(gone) > _NAMED else ""
            _log.warning(
                "stream %r: %d pending entries were trimmed or deleted before they were handled: %s%s",
                self._config.stream_key,
                len(gone),
                ", ".join(gone[:_NAMED]),
                more,
            )
