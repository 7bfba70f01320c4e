"""Delivery to a handler: fetch, handler, commit, ack, in that order, one message at a time."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from conquiet.checks import checked_int
from conquiet.errors import MalformedEntryError, QueueConfigError
from conquiet.flow import Call, Flow, Signal, Sleep, shielded
from conquiet.queue.config import QueueConfig, checked_block_ms
from conquiet.queue.flows.operations import StreamOperations
from conquiet.queue.message import MalformedEntry, QueueMessage

__all__ = ["Delivery"]

_log = logging.getLogger("conquiet.queue")

Handler = Callable[..., Any]


class Delivery:
    """The flows of one consumer. Their only state is whether a stop was requested."""

    def __init__(self, operations: StreamOperations, config: QueueConfig) -> None:
        if config.max_read_count != 1:
            raise QueueConfigError(
                f"QueueConfig.max_read_count must be 1 for a QueueConsumer, not {config.max_read_count}: it has no "
                "buffer, and messages read ahead would wait unacknowledged; read batches with RedisStreamsQueue"
            )
        self._operations = operations
        self._config = config
        self.stopped = Signal()

    def next(self, block_ms: int | None) -> Flow[QueueMessage | None]:
        if block_ms is not None:
            checked_block_ms("block_ms", block_ms)
        if self.stopped.is_set():
            return None
        messages = yield from self._operations.read(block_ms or self._config.block_ms, 1)
        return messages[0] if messages else None

    def next_to_hand_on(self) -> Flow[QueueMessage | None]:
        """Like `next`, but a message that arrives after `stop()` is not returned: it stays pending."""
        message = yield from self.next(None)
        return None if self.stopped.is_set() else message

    def run(self, handler: Handler, db_factory: Any, on_malformed: Handler | None) -> Flow[None]:
        while not self.stopped.is_set():
            try:
                message = yield from self.next_to_hand_on()
            except MalformedEntryError as error:
                if on_malformed is None:
                    raise
                if not self.stopped.is_set():
                    yield from self._handle(on_malformed, error.entries[0], db_factory)
            else:
                if message is not None:
                    yield from self._handle(handler, message, db_factory)

    def run_recovery(
        self, handler: Handler, db_factory: Any, on_malformed: Handler | None, interval_ms: int, count: int
    ) -> Flow[None]:
        checked_int("interval_ms", interval_ms, 1, error=QueueConfigError)
        checked_int("count", count, 1, error=QueueConfigError)
        while not self.stopped.is_set():
            for _ in range(count):
                # One at a time: messages claimed in advance would become stale again while they wait.
                if self.stopped.is_set() or not (
                    yield from self.recover_one(handler, db_factory, on_malformed)
                ):
                    break
            else:
                continue  # there may be more
            yield Sleep(interval_ms / 1000, self.stopped)

    def recover_one(self, handler: Handler, db_factory: Any, on_malformed: Handler | None) -> Flow[bool]:
        """Claim and handle one stale message. Return False if there was none."""
        try:
            messages = yield from self._operations.claim_stale(self._config.claim_idle_ms, 1)
        except MalformedEntryError as error:
            if on_malformed is None:
                raise
            yield from self._handle(on_malformed, error.entries[0], db_factory)
            return True
        if messages.gone:
            _log.warning(
                "stream %r: pending entries were trimmed or deleted before they were handled: %s",
                self._config.stream_key,
                ", ".join(messages.gone),
            )
        for message in messages:
            yield from self._handle(handler, message, db_factory)
        return bool(messages or messages.gone)

    def _handle(
        self, handler: Handler, message: QueueMessage | MalformedEntry, db_factory: Any
    ) -> Flow[None]:
        tx = yield Call(db_factory.begin)
        try:
            yield Call(handler, message, tx)
            # The work is done: from here on a cancellation must not come between commit and ack.
            yield Call(tx.commit, shield=True)
        except BaseException as error:
            try:
                yield Call(tx.rollback, shield=True)
            except Exception as rollback_error:  # noqa: BLE001 - added as a note to the handler's error
                error.add_note(f"the rollback failed too: {rollback_error!r}")
            raise
        # If this fails, the effect is committed and the message stays pending: it will be delivered again.
        yield from shielded(self._operations.ack(message))
