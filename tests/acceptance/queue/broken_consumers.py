"""Consumers that are wrong on purpose, each in a way seen in real ones. The history checker must detect them.

Each changes one thing in `Delivery`, the logic of both consumers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from conquiet.flow import Call, Flow
from conquiet.queue import MalformedEntry, QueueMessage
from conquiet.queue.flows.delivery import Delivery
from conquiet.queue.wire.commands import pack

Delivered = QueueMessage | MalformedEntry


class AcksBeforeHandler(Delivery):
    """At most once: whatever happens in the handler, the message is lost."""

    def _handle(self, handler: Any, message: Delivered, db_factory: Any, fenced: bool) -> Flow[None]:
        yield from self._operations.ack(message)
        tx = yield Call(db_factory.begin)
        yield Call(handler, message, tx)
        yield Call(tx.commit, shield=True)


class AcksBeforeCommit(Delivery):
    """A crash between ack and commit loses the effect."""

    def _handle(self, handler: Any, message: Delivered, db_factory: Any, fenced: bool) -> Flow[None]:
        tx = yield Call(db_factory.begin)
        yield Call(handler, message, tx)
        yield from self._operations.ack(message)
        yield Call(tx.commit, shield=True)


class SwallowsErrors(Delivery):
    """A handler's error is "handled": rolled back, acknowledged, forgotten."""

    def _handle(self, handler: Any, message: Delivered, db_factory: Any, fenced: bool) -> Flow[None]:
        tx = yield Call(db_factory.begin)
        try:
            yield Call(handler, message, tx)
            yield Call(tx.commit, shield=True)
        except Exception:
            yield Call(tx.rollback, shield=True)
        yield from self._operations.ack(message)


class AcksWhatItDropsAtStop(Delivery):
    """Acknowledges a message that was read after stop(), to leave nothing pending."""

    def next_to_hand_on(self) -> Flow[QueueMessage | None]:
        message = yield from self.next(None)
        if message is not None and self.stopped.is_set():
            yield from self._operations.ack(message)
            return None
        return message


class DropsTheGoodOnes(Delivery):
    """One malformed entry in a batch discards the whole batch."""

    def run_recovery(self, *args: Any, **options: Any) -> Flow[None]:
        operations = self._operations
        find, take = operations.stale, operations.claim
        page: list[str] = []

        def stale(*given: Any) -> Flow[list[str]]:
            page[:] = yield from find(*given)
            return list(page)

        def claim(
            ids: Sequence[str], min_idle_ms: int
        ) -> Flow[tuple[list[QueueMessage], list[MalformedEntry]]]:
            messages, malformed = yield from take(page or ids, min_idle_ms)  # a batch, not one at a time
            if malformed:
                yield from operations.ack_many(messages)
                return [], malformed
            return messages, malformed

        operations.stale, operations.claim = stale, claim  # type: ignore[method-assign, assignment]
        yield from super().run_recovery(*args, **options)


class ClaimsAtOnce(Delivery):
    """Recovery that does not wait until a message is stale: two consumers handle it at the same time."""

    def run_recovery(self, *args: Any, **options: Any) -> Flow[None]:
        operations = self._operations
        find, take = operations.stale, operations.claim
        operations.stale = lambda min_idle_ms, *more: find(0, *more)  # type: ignore[method-assign]
        operations.claim = lambda ids, min_idle_ms: take(ids, 0)  # type: ignore[method-assign]
        yield from super().run_recovery(*args, **options)


class HandlesAgain(Delivery):
    """Keeps the last message in a buffer, and handles it again after its ack."""

    def _handle(self, handler: Any, message: Delivered, db_factory: Any, fenced: bool) -> Flow[None]:
        yield from super()._handle(handler, message, db_factory, fenced)
        tx = yield Call(db_factory.begin)
        yield Call(handler, message, tx)
        yield Call(tx.commit)


class SkipsEveryThird(Delivery):
    """An "already seen" filter that is too eager."""

    _seen = 0

    def _handle(self, handler: Any, message: Delivered, db_factory: Any, fenced: bool) -> Flow[None]:
        self._seen += 1
        if self._seen % 3:
            yield from super()._handle(handler, message, db_factory, fenced)
        else:
            yield from self._operations.ack(message)


class NeverAcks(Delivery):
    """Leaves everything pending: it is delivered again and again."""

    def _handle(self, handler: Any, message: Delivered, db_factory: Any, fenced: bool) -> Flow[None]:
        tx = yield Call(db_factory.begin)
        yield Call(handler, message, tx)
        yield Call(tx.commit)


class AcksWhatOthersHold(Delivery):
    """Acknowledges everything pending in the group after each message, to tidy up."""

    def _handle(self, handler: Any, message: Delivered, db_factory: Any, fenced: bool) -> Flow[None]:
        yield from super()._handle(handler, message, db_factory, fenced)
        stream, group = message.stream, message.group
        rows = yield from self._operations._exchange(
            "tidy up", pack("XPENDING", stream, group, "-", "+", 100)
        )
        others = [QueueMessage(row[0].decode(), {}, stream, group) for row in rows]
        if others:
            yield from self._operations.ack_many(others)
