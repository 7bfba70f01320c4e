"""The high-level consumers: they fetch messages, call your handler, commit and acknowledge."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractContextManager
from inspect import isclass, signature
from typing import Any, Protocol, TypeVar

from redis import Redis
from redis.asyncio import Redis as AsyncRedis
from redis.asyncio.cluster import RedisCluster as AsyncRedisCluster
from redis.cluster import RedisCluster

from conquiet.errors import QueueConfigError
from conquiet.flow import deferred_kind, describe, run, run_async
from conquiet.payload import DEFAULT_LIMITS
from conquiet.queue.config import QueueConfig
from conquiet.queue.flows.delivery import Delivery
from conquiet.queue.flows.operations import StreamOperations
from conquiet.queue.message import BacklogStats, ClaimedMessages, MalformedEntry, QueueMessage
from conquiet.signals import stop_on_sigterm

__all__ = ["AsyncDbFactory", "AsyncDbTx", "AsyncQueueConsumer", "DbFactory", "DbTx", "QueueConsumer"]


class DbTx(Protocol):
    """The transaction that commits the handler's effects."""

    def commit(self) -> object: ...
    def rollback(self) -> object: ...


Tx = TypeVar("Tx", bound=DbTx, covariant=True)


class DbFactory(Protocol[Tx]):
    """Begins a transaction per message; `conquiet.queue.transactions` has implementations."""

    def begin(self) -> Tx: ...


class AsyncDbTx(Protocol):
    def commit(self) -> Awaitable[object]: ...
    def rollback(self) -> Awaitable[object]: ...


AsyncTx = TypeVar("AsyncTx", bound=AsyncDbTx, covariant=True)


class AsyncDbFactory(Protocol[AsyncTx]):
    def begin(self) -> Awaitable[AsyncTx]: ...


class QueueConsumer:
    """Consumes one stream. No automatic ack, no retry, no background work, no buffer beyond one message."""

    def __init__(self, redis: Redis | RedisCluster, config: QueueConfig) -> None:
        self.config = config
        self._operations = StreamOperations(redis, config, DEFAULT_LIMITS, awaits=False)
        self._delivery = Delivery(self._operations, config)
        run(self._operations.create_group())

    def next(self, block_ms: int | None = None) -> QueueMessage | None:
        """Return the next new message; None if none arrived in `block_ms` (default: as configured), or after `stop`."""
        return run(self._delivery.next(block_ms))

    def iter_messages(self) -> Iterator[QueueMessage]:
        """Yield new messages until `stop`. Acknowledge each yourself, after your effects are committed."""
        while not self._delivery.stopped.is_set():
            message = run(self._delivery.next_to_hand_on())
            if message is not None:
                yield message

    def ack(self, msg: QueueMessage | MalformedEntry) -> None:
        """Acknowledge a message; also possible after `stop`."""
        run(self._operations.ack(msg))

    def stop(self) -> None:
        """Begin no new read. Safe from any thread and from a signal handler; it does not interrupt a read."""
        self._delivery.stopped.set()

    def stop_on_sigterm(self) -> AbstractContextManager[None]:
        """Make SIGTERM call `stop` during your own loop of `next` or `iter_messages`. `run` does this by itself."""
        return stop_on_sigterm(self.stop)

    def run(
        self,
        *,
        handler: Callable[[QueueMessage, Any], None],
        db_factory: DbFactory[Any],
        on_malformed: Callable[[MalformedEntry, Any], None] | None = None,
        fenced: bool = False,
    ) -> None:
        """Repeat fetch, `handler(msg, tx)`, commit, ack until `stop` or SIGTERM; the current message is finished.

        If the handler or the commit raises, the transaction is rolled back, the exception is raised, and the message
        stays pending. A malformed entry raises too, or is passed to `on_malformed(entry, tx)` instead of the handler.

        `fenced` acknowledges as `ack_if_owner` of the queue does: `LeaseLostError`, after the commit, if another consumer
        holds the message by then.
        """
        _check(db_factory, handler, on_malformed, awaits=False)
        with self.stop_on_sigterm():
            run(self._delivery.run(handler, db_factory, on_malformed, fenced=fenced))

    def claim_stale(self, min_idle_ms: int | None = None, count: int = 10) -> ClaimedMessages:
        """Take over messages that others left pending for `min_idle_ms` (default: `claim_idle_ms`)."""
        return run(self._operations.claim_stale(_idle(min_idle_ms, self.config), count))

    def run_recovery(
        self,
        *,
        handler: Callable[[QueueMessage, Any], None],
        db_factory: DbFactory[Any],
        on_malformed: Callable[[MalformedEntry, Any], None] | None = None,
        interval_ms: int = 5_000,
        count: int = 10,
        fenced: bool = False,
    ) -> None:
        """Claim stale messages and handle them as `run` does, one at a time, in passes every `interval_ms`, until `stop`.

        A pass goes through the pending list once, `count` ids per look. It ends as soon as new messages wait to be read by
        the group: they come first. Run it in a separate process: it never starts by itself, and it reads no new messages.
        """
        _check(db_factory, handler, on_malformed, awaits=False)
        with self.stop_on_sigterm():
            run(
                self._delivery.run_recovery(
                    handler, db_factory, on_malformed, interval_ms, count, fenced=fenced
                )
            )

    def backlog_stats(self) -> BacklogStats:
        """Return how full the stream and the group are. Computed only by this call."""
        return run(self._operations.backlog_stats())


class AsyncQueueConsumer:
    """`QueueConsumer` for asyncio: the same methods, awaited; `async for` over `iter_messages()`. Use `create`."""

    def __init__(self, redis: AsyncRedis | AsyncRedisCluster, config: QueueConfig) -> None:
        """Without creating the group: use `create`."""
        self.config = config
        self._operations = StreamOperations(
            redis,
            config,
            DEFAULT_LIMITS,
            awaits=True,
            create="await AsyncQueueConsumer.create(redis, config)",
        )
        self._delivery = Delivery(self._operations, config)

    @classmethod
    async def create(cls, redis: AsyncRedis | AsyncRedisCluster, config: QueueConfig) -> AsyncQueueConsumer:
        consumer = cls(redis, config)
        await run_async(consumer._operations.create_group())
        return consumer

    async def next(self, block_ms: int | None = None) -> QueueMessage | None:
        return await run_async(self._delivery.next(block_ms))

    async def iter_messages(self) -> AsyncIterator[QueueMessage]:
        while not self._delivery.stopped.is_set():
            message = await run_async(self._delivery.next_to_hand_on())
            if message is not None:
                yield message

    async def ack(self, msg: QueueMessage | MalformedEntry) -> None:
        await run_async(self._operations.ack(msg))

    def stop(self) -> None:
        self._delivery.stopped.set()

    def stop_on_sigterm(self) -> AbstractContextManager[None]:
        return stop_on_sigterm(self.stop)

    async def run(
        self,
        *,
        handler: Callable[[QueueMessage, Any], Awaitable[None] | None],
        db_factory: AsyncDbFactory[Any],
        on_malformed: Callable[[MalformedEntry, Any], Awaitable[None] | None] | None = None,
        fenced: bool = False,
    ) -> None:
        _check(db_factory, handler, on_malformed, awaits=True)
        with self.stop_on_sigterm():
            await run_async(self._delivery.run(handler, db_factory, on_malformed, fenced=fenced))

    async def claim_stale(self, min_idle_ms: int | None = None, count: int = 10) -> ClaimedMessages:
        return await run_async(self._operations.claim_stale(_idle(min_idle_ms, self.config), count))

    async def run_recovery(
        self,
        *,
        handler: Callable[[QueueMessage, Any], Awaitable[None] | None],
        db_factory: AsyncDbFactory[Any],
        on_malformed: Callable[[MalformedEntry, Any], Awaitable[None] | None] | None = None,
        interval_ms: int = 5_000,
        count: int = 10,
        fenced: bool = False,
    ) -> None:
        _check(db_factory, handler, on_malformed, awaits=True)
        with self.stop_on_sigterm():
            await run_async(
                self._delivery.run_recovery(
                    handler, db_factory, on_malformed, interval_ms, count, fenced=fenced
                )
            )

    async def backlog_stats(self) -> BacklogStats:
        return await run_async(self._operations.backlog_stats())


def _idle(min_idle_ms: int | None, config: QueueConfig) -> int:
    return config.claim_idle_ms if min_idle_ms is None else min_idle_ms


def _check(db_factory: Any, handler: Any, on_malformed: Any, *, awaits: bool) -> None:
    """Refuse arguments that would fail at every message, before anything is read."""
    begin = getattr(db_factory, "begin", None)
    if not callable(begin):
        raise QueueConfigError(
            f"db_factory needs a method begin(), which {type(db_factory).__name__} does not have"
        )
    for name, given in (("handler", handler), ("on_malformed", on_malformed)):
        if not callable(given) and (name == "handler" or given is not None):
            raise QueueConfigError(f"{name} must be a function, not {type(given).__name__}")
    for given in (begin, handler, on_malformed):
        kind = deferred_kind(given)
        if kind == "generator function":
            raise QueueConfigError(
                f"{describe(given)} is a generator function: calling it would not run it. Use a function without yield"
            )
        if kind and not awaits:
            raise QueueConfigError(
                f"{describe(given)} is a coroutine function: use AsyncQueueConsumer, or a plain function"
            )
    hint = (
        f"; db_factory is a class: give an object of it, {db_factory.__name__}(…)"
        if isclass(db_factory)
        else ""
    )
    _check_call(begin, "begin()", (), hint)
    _check_call(handler, "handler(message, tx)", (None, None))
    if on_malformed is not None:
        _check_call(on_malformed, "on_malformed(entry, tx)", (None, None))


def _check_call(given: Any, call: str, arguments: tuple[None, ...], hint: str = "") -> None:
    try:
        accepted = signature(given)
    except (ValueError, TypeError):  # written in C, without a signature
        return
    try:
        accepted.bind(*arguments)
    except TypeError as error:
        raise QueueConfigError(f"{describe(given)} cannot be called as {call}: {error}{hint}") from None
