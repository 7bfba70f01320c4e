"""Delivery to a handler: fetch, handler, commit, ack, in that order, one message at a time."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from conquiet.checks import checked_int
from conquiet.errors import MalformedEntryError, QueueConfigError
from conquiet.flow import (
    Call,
    Flow,
    Signal,
    deferred_kind,
    describe,
    original,
    refuse_deferred,
    shielded,
)
from conquiet.queue.config import QueueConfig, checked_block_ms
from conquiet.queue.flows.message_log import MessageLog
from conquiet.queue.flows.operations import StreamOperations, malformed_error
from conquiet.queue.flows.recovery import Recovery
from conquiet.queue.message import MalformedEntry, QueueMessage
from conquiet.redaction import annotate, described

__all__ = ["Delivery"]

Handler = Callable[..., Any]


class Delivery:
    """The flows of one consumer. Their only state is whether a stop was requested, and which kind of transaction is known
    to be one."""

    def __init__(self, operations: StreamOperations, config: QueueConfig) -> None:
        if config.max_read_count != 1:
            raise QueueConfigError(
                f"QueueConfig.max_read_count must be 1 for a QueueConsumer, not {config.max_read_count}: it has no "
                "buffer, and messages read ahead would wait unacknowledged; read batches with RedisStreamsQueue"
            )
        self._operations = operations
        self._config = config
        self._log = MessageLog(config)
        self.stopped = Signal()
        self._tx_kind: type | None = None

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

    def run(
        self, handler: Handler, db_factory: Any, on_malformed: Handler | None, *, fenced: bool = False
    ) -> Flow[None]:
        while not self.stopped.is_set():
            try:
                message = yield from self.next_to_hand_on()
            except MalformedEntryError as error:
                if on_malformed is None:
                    raise
                if not self.stopped.is_set():
                    yield from self._handle(on_malformed, error.entries[0], db_factory, fenced)
            else:
                if message is not None:
                    yield from self._handle(handler, message, db_factory, fenced)

    def run_recovery(
        self,
        handler: Handler,
        db_factory: Any,
        on_malformed: Handler | None,
        interval_ms: int,
        count: int,
        *,
        fenced: bool = False,
    ) -> Flow[None]:
        checked_int("interval_ms", interval_ms, 1, error=QueueConfigError)
        checked_int("count", count, 1, error=QueueConfigError)
        yield from self._recovery(handler, db_factory, on_malformed, fenced).run(interval_ms, count)

    def recover(self, handler: Handler, db_factory: Any, most: int) -> Flow[int]:
        """Claim and handle up to `most` stale messages, whether there are new ones or not. Return how many."""
        recovery = self._recovery(handler, db_factory, None, fenced=False)
        return (yield from recovery.one_pass(most, most=most))

    def _recovery(
        self, handler: Handler, db_factory: Any, on_malformed: Handler | None, fenced: bool
    ) -> Recovery:
        def handle(entry: QueueMessage | MalformedEntry) -> Flow[None]:
            if isinstance(entry, QueueMessage):
                return self._handle(handler, entry, db_factory, fenced)
            if on_malformed is None:
                raise malformed_error([entry], [])
            return self._handle(on_malformed, entry, db_factory, fenced)

        return Recovery(self._operations, self._config, self.stopped, handle)

    def _handle(
        self, handler: Handler, message: QueueMessage | MalformedEntry, db_factory: Any, fenced: bool
    ) -> Flow[None]:
        began = self._log.started(message, handler)
        try:
            yield from self._deliver(handler, message, db_factory, fenced)
        except BaseException as error:
            self._log.failed(message, handler, began, original(error))
            raise
        self._log.succeeded(message, handler, began)

    def _deliver(
        self, handler: Handler, message: QueueMessage | MalformedEntry, db_factory: Any, fenced: bool
    ) -> Flow[None]:
        tx = yield Call(db_factory.begin)
        if type(tx) is not self._tx_kind:
            _check_transaction(db_factory, tx, self._operations.awaits)
            self._tx_kind = type(tx)
        try:
            if (returned := (yield Call(handler, message, tx))) is not None:
                refuse_deferred(handler, returned)
            # The work is done: from here on a cancellation must not come between commit and ack.
            if (returned := (yield Call(tx.commit, shield=True))) is not None:
                refuse_deferred(tx.commit, returned)
        except BaseException as raised:
            error = original(raised)
            rollback = _rollback_awaited if self._operations.awaits else _rollback
            try:
                yield Call(rollback, tx, error, shield=True)
            except Exception as rollback_error:  # noqa: BLE001 - added as a note to the handler's error
                annotate(error, f"the rollback failed too: {described(rollback_error)}")
            raise
        # If this fails, the effect is committed and the message stays pending: it will be delivered again.
        ack = self._operations.ack_if_owner if fenced else self._operations.ack
        yield from shielded(ack(message))


def _check_transaction(db_factory: Any, tx: Any, awaits: bool) -> None:
    """Refuse what begin() returned before the handler is called, if its effects could not be committed."""
    begin = f"{type(db_factory).__qualname__}.begin()"
    for name in ("commit", "rollback"):
        method = getattr(tx, name, None)
        if not callable(method):
            raise QueueConfigError(
                f"{begin} returned a {type(tx).__qualname__}, which has no method {name}(). The handler was not called: give "
                "a db_factory whose begin() returns a transaction, for example SqlAlchemyTransactions(sessionmaker)"
            )
        kind = deferred_kind(method)
        if kind == "generator function" or (kind and not awaits):
            raise QueueConfigError(
                f"{describe(method)} is a {kind}: calling it would not run it, and the handler was not called. "
                "Use a plain function, or AsyncQueueConsumer if it is a coroutine function"
            )


def _rollback(tx: Any, error: BaseException) -> Any:
    """Call `tx.rollback()` as in an `except` block, of which the driver knows nothing: a transaction that wraps a context
    manager passes sys.exc_info() on, and would commit if that were empty."""
    where = error.__traceback__
    try:
        raise error
    except BaseException:  # noqa: BLE001 - the caller raises it again
        error.__traceback__ = where  # without this function
        return tx.rollback()


async def _rollback_awaited(tx: Any, error: BaseException) -> None:
    where = error.__traceback__
    try:
        raise error
    except BaseException:  # noqa: BLE001 - the caller raises it again
        error.__traceback__ = where
        value = tx.rollback()
        if inspect.isawaitable(value):
            await value
