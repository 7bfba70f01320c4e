"""Real consumers with a recorder between them and Redis, which writes every step to a history.

The points in the life of a message, for tests that kill a process at one of them:

    delivered   Redis has delivered the message, and the consumer has not seen it yet
    handling    in the handler, after it has written its effect and before the commit
    handled     between handler and commit
    committed   between commit and ack
    acking      Redis has executed the ack, and the consumer does not know it yet
    acked       after the ack, before the next read
    idle        a read or a claim returned nothing
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from conquiet.errors import MalformedEntryError
from conquiet.flow import Flow, run_async
from conquiet.queue import (
    AsyncQueueConsumer,
    MalformedEntry,
    QueueConfig,
    QueueConsumer,
    QueueMessage,
    RedisStreamsQueue,
)
from conquiet.queue.flows import Delivery, StreamOperations
from conquiet.queue.wire import pack
from conquiet.verify.history import History, Operation

__all__ = ["POINTS", "AsyncRecordedConsumer", "RecordedConsumer", "RecordedOperations", "RecordedQueue"]

POINTS = (
    "delivered",
    "handling",
    "handled",
    "committed",
    "acking",
    "acked",
)  # where a message could be lost or repeated
Reached = Callable[[str], None]

# For each entry: its consumer, how long it has been idle, and the number of deliveries; first the server's time.
_HOLDS = (
    "local time = redis.call('TIME') "
    "local rows = {time[1] * 1000 + math.floor(time[2] / 1000)} "
    "for i = 2, #ARGV do rows[i] = redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[i], ARGV[i], 1)[1] or {} end "
    "return rows"
)
_CLOCK_SLACK_MS = 2  # within one command, TIME and the delivery time are read at two moments


def nowhere(point: str) -> None:
    """Do nothing at any point."""


class RecordedOperations(StreamOperations):
    """Records the operations of the queue. A hold is exclusive for `claim_idle_ms` of the configuration."""

    def __init__(self, plain: StreamOperations, history: History, reached: Reached = nowhere) -> None:
        vars(self).update(vars(plain))  # the same state, with other methods
        self.history = history
        self.reached = reached
        self._holder = self.config.consumer_name

    def enqueue(self, payload: dict[str, Any]) -> Flow[str]:
        with self.history.operation("enqueue") as op:
            entry_id = yield from super().enqueue(payload)
            op.ok(entry_id)
        return entry_id

    def enqueue_many(self, payloads: Iterable[dict[str, Any]]) -> Flow[list[str]]:
        with self.history.operation("enqueue") as op:
            ids = yield from super().enqueue_many(payloads)
            for entry_id in ids:
                op.ok(entry_id)
        return ids

    def read(self, block_ms: int, count: int) -> Flow[list[QueueMessage]]:
        with self.history.operation("deliver", holder=self._holder) as op:
            try:
                messages = yield from super().read(block_ms, count)
            except MalformedEntryError as error:
                yield from self._note_holds(op, [*error.messages, *error.entries])
                raise
            yield from self._note_holds(op, messages)
        return messages

    def claim(
        self, ids: Sequence[str], min_idle_ms: int
    ) -> Flow[tuple[list[QueueMessage], list[MalformedEntry]]]:
        with self.history.operation("claim", holder=self._holder) as op:
            messages, malformed = yield from super().claim(ids, min_idle_ms)
            yield from self._note_holds(op, [*messages, *malformed])
        return messages, malformed

    def stale(self, min_idle_ms: int, count: int, after: str | None = None) -> Flow[list[str]]:
        found = yield from super().stale(min_idle_ms, count, after)
        if not found:
            self.reached("idle")
        return found

    def has_new(self) -> Flow[bool]:
        waiting = yield from super().has_new()
        if waiting:
            self.reached("idle")  # recovery gives way to it
        return waiting

    def ack_if_owner(self, message: QueueMessage | MalformedEntry) -> Flow[None]:
        with self.history.operation("ack", message.id, holder=self._holder):
            yield from super().ack_if_owner(message)
            self.reached("acking")
        self.reached("acked")

    def ack_many(self, messages: Sequence[QueueMessage | MalformedEntry], **how: Any) -> Flow[int]:
        with self.history.operation("ack", *(m.id for m in messages), holder=self._holder):
            acked = yield from super().ack_many(messages, **how)
            self.reached("acking")
        self.reached("acked")
        return acked

    def _note_holds(self, op: Operation, delivered: Sequence[QueueMessage | MalformedEntry]) -> Flow[None]:
        if not delivered:
            self.reached("idle")
            return
        self.reached("delivered")
        ids = [message.id for message in delivered]
        command = pack("EVAL", _HOLDS, 1, self._stream, self._group, *ids)
        now, *rows = yield from self._exchange("who holds what", command)
        for entry_id, row in zip(ids, rows, strict=True):
            if row and row[1].decode() == self._holder:
                at = now - row[2]
                op.ok(entry_id, version=row[3], at=at, until=at + self.config.claim_idle_ms - _CLOCK_SLACK_MS)
            else:
                op.ok(entry_id)  # meanwhile another consumer has taken it over, or it was acknowledged


class RecordedQueue(RedisStreamsQueue):
    def __init__(self, redis: Any, config: QueueConfig, history: History) -> None:
        super().__init__(redis, config)
        self.operations = RecordedOperations(self.operations, history)


class RecordedTransactions:
    """Records a handling from the start of the handler to the end of its transaction: ok means committed."""

    def __init__(self, inner: Any, operations: RecordedOperations) -> None:
        self._inner = inner
        self._operations = operations

    def begin(self) -> RecordedTransaction:
        return RecordedTransaction(self._inner.begin(), self._operations)


class RecordedTransaction:
    def __init__(self, tx: Any, operations: RecordedOperations) -> None:
        self.tx = tx
        self._operations = operations
        self._holder = operations.config.consumer_name
        self._about: tuple[str, str] | None = None

    def handled_by(self, handler: Callable[..., Any], message: QueueMessage | MalformedEntry) -> Any:
        op = self._operations.history.record("invoke", "handle", message.id, holder=self._holder)
        self._about = (op, message.id)
        return handler(message, self.tx)

    def commit(self) -> None:
        self._operations.reached("handled")
        self.tx.commit()
        self._record("ok")
        self._operations.reached("committed")

    def rollback(self) -> None:
        self.tx.rollback()
        self._record("fail")

    def _record(self, phase: Any) -> None:
        if self._about is not None:
            op, entry_id = self._about
            self._operations.history.record(phase, "handle", entry_id, op=op, holder=self._holder)
            self._about = None


def recorded_handler(handler: Callable[..., Any]) -> Callable[..., Any]:
    return lambda message, tx: tx.handled_by(handler, message)


class _Recorded:
    """A mixin before a consumer class: records its operations. `delivery` may be a deliberately wrong one."""

    _operations: Any

    def __init__(
        self,
        redis: Any,
        config: QueueConfig,
        history: History,
        *,
        reached: Reached = nowhere,
        delivery: type[Delivery] = Delivery,
    ) -> None:
        super().__init__(redis, config)  # type: ignore[call-arg]
        self._operations = RecordedOperations(self._operations, history, reached)
        self._delivery = delivery(self._operations, config)


class RecordedConsumer(_Recorded, QueueConsumer):
    """`QueueConsumer`, recorded."""

    def run(self, *, handler: Any, db_factory: Any, on_malformed: Any = None, fenced: bool = False) -> None:
        super().run(**_recorded(self._operations, handler, db_factory, on_malformed), fenced=fenced)

    def run_recovery(
        self, *, handler: Any, db_factory: Any, on_malformed: Any = None, **settings: Any
    ) -> None:
        super().run_recovery(**_recorded(self._operations, handler, db_factory, on_malformed), **settings)


class AsyncRecordedConsumer(_Recorded, AsyncQueueConsumer):
    """`AsyncQueueConsumer`, recorded. Transactions are synchronous, which both consumers accept."""

    async def create_group(self) -> None:
        await run_async(self._operations.create_group())

    async def run(
        self, *, handler: Any, db_factory: Any, on_malformed: Any = None, fenced: bool = False
    ) -> None:
        await super().run(**_recorded(self._operations, handler, db_factory, on_malformed), fenced=fenced)

    async def run_recovery(
        self, *, handler: Any, db_factory: Any, on_malformed: Any = None, **settings: Any
    ) -> None:
        recorded = _recorded(self._operations, handler, db_factory, on_malformed)
        await super().run_recovery(**recorded, **settings)


def _recorded(
    operations: RecordedOperations, handler: Any, db_factory: Any, on_malformed: Any
) -> dict[str, Any]:
    return {
        "handler": recorded_handler(handler),
        "db_factory": RecordedTransactions(db_factory, operations),
        "on_malformed": None if on_malformed is None else recorded_handler(on_malformed),
    }
