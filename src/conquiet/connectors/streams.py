"""Messages of a Redis stream as transactions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from conquiet.connectors.shells import AsyncSettles, Settles, check_source
from conquiet.errors import LeaseLostError, MalformedEntryError
from conquiet.flow import Call, Flow, current_fence
from conquiet.queue import AsyncRedisStreamsQueue, MalformedEntry, QueueMessage, RedisStreamsQueue
from conquiet.task import ExceptionCategory, Outcome, OutcomeStatus, Transaction

__all__ = ["AsyncStreamConnector", "StreamConnector"]


class _Streams:
    """Successes and handled BUSINESS failures are acknowledged; everything else stays pending.

    `claim_stale` finds pending messages, here or in another process. The connector itself does not retry.
    """

    def __init__(
        self,
        queue: Any,
        *,
        block_ms: int | None = None,
        on_malformed: Callable[[MalformedEntry], Any] | None = None,
        fenced: bool = False,
    ) -> None:
        """`block_ms`: how long a fetch waits for the first message (default: the queue's own `block_ms`).

        A malformed entry is passed to `on_malformed` and then acknowledged. Without `on_malformed`, the fetch raises
        `MalformedEntryError` after the good messages of the same batch have been returned.

        `fenced` acknowledges each message by itself, and only if this consumer still holds it. If others have taken messages
        over, because they were idle for too long, `LeaseLostError` names them after all of the rest is acknowledged.
        """
        self._operations = queue.operations
        self._block_ms = queue.config.block_ms if block_ms is None else block_ms
        self._on_malformed = on_malformed
        self._fenced = fenced
        self._malformed: MalformedEntryError | None = None
        self._metadata = {"stream": queue.config.stream_key, "group": queue.config.consumer_group}

    def fetch(self, batch_size: int, block_ms: int | None = None) -> Flow[list[Transaction]]:
        if self._malformed is not None:
            error, self._malformed = self._malformed, None
            raise error
        while True:
            try:
                block = self._block_ms if block_ms is None else block_ms
                messages = yield from self._operations.read(block, batch_size)
                break
            except MalformedEntryError as error:
                messages = error.messages
                if self._on_malformed is None:
                    if not messages:
                        raise
                    self._malformed = error
                    break
                for entry in error.entries:
                    yield Call(self._on_malformed, entry)
                    yield from self._operations.ack(entry)
                # If all entries are malformed, read again: an empty batch would mean that the stream is drained.
                if messages or current_fence().closed:
                    break
        metadata = self._metadata
        return [Transaction(message.id, message.payload, metadata) for message in messages]

    def settled(self, outcomes: Sequence[Outcome]) -> Flow[Collection[Outcome]]:
        stream, group = self._metadata["stream"], self._metadata["group"]
        done = [
            QueueMessage(outcome.transaction_id, {}, stream, group)
            for outcome in outcomes
            if outcome.status is OutcomeStatus.SUCCEEDED
            or (outcome.category is ExceptionCategory.BUSINESS and outcome.handled)
        ]
        if self._fenced:
            yield from self._acked_if_held(done)
        elif done:
            yield from self._operations.ack_many(done)
        return ()

    def _acked_if_held(self, messages: list[QueueMessage]) -> Flow[None]:
        lost: list[LeaseLostError] = []
        for message in messages:
            try:
                yield from self._operations.ack_if_owner(message)
            except LeaseLostError as error:
                lost.append(error)
        if len(lost) == 1:
            raise lost[0]
        if lost:
            raise LeaseLostError(f"{len(lost)} messages: {'; '.join(map(str, lost))}")

    def released(self, outcomes: Sequence[Outcome]) -> Flow[None]:
        return
        yield  # they stay pending: there is nothing to do


class StreamConnector(_Streams, Settles):
    """A `RedisStreamsQueue` for `ConsumerMixin`."""

    def __init__(
        self,
        queue: RedisStreamsQueue,
        *,
        block_ms: int | None = None,
        on_malformed: Callable[[MalformedEntry], Any] | None = None,
        fenced: bool = False,
    ) -> None:
        check_source(self, queue, RedisStreamsQueue)
        super().__init__(queue, block_ms=block_ms, on_malformed=on_malformed, fenced=fenced)


class AsyncStreamConnector(_Streams, AsyncSettles):
    """An `AsyncRedisStreamsQueue` for `AsyncConsumerMixin`."""

    def __init__(
        self,
        queue: AsyncRedisStreamsQueue,
        *,
        block_ms: int | None = None,
        on_malformed: Callable[[MalformedEntry], Any] | None = None,
        fenced: bool = False,
    ) -> None:
        check_source(self, queue, AsyncRedisStreamsQueue)
        super().__init__(queue, block_ms=block_ms, on_malformed=on_malformed, fenced=fenced)
