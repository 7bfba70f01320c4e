"""The low-level queue: one Redis operation per call; nothing is retried and nothing is buffered."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from redis import Redis
from redis.asyncio import Redis as AsyncRedis
from redis.asyncio.cluster import RedisCluster as AsyncRedisCluster
from redis.cluster import RedisCluster

from conquiet.flow import run, run_async
from conquiet.payload import DEFAULT_LIMITS, Payload, PayloadLimits
from conquiet.queue.config import QueueConfig
from conquiet.queue.flows.operations import StreamOperations
from conquiet.queue.message import BacklogStats, ClaimedMessages, MalformedEntry, QueueMessage

__all__ = ["AsyncRedisStreamsQueue", "RedisStreamsQueue"]


class RedisStreamsQueue:
    """A stream and its consumer group. The constructor creates both if they do not exist.

    Every Redis error becomes a `QueueError`; the caller decides what to do about it.
    """

    def __init__(
        self,
        redis: Redis | RedisCluster,
        config: QueueConfig,
        *,
        limits: PayloadLimits = DEFAULT_LIMITS,
        min_replicas: int = 0,
        replicas_timeout_ms: int = 1_000,
    ) -> None:
        """With `min_replicas`, an enqueue returns when so many replicas have confirmed it, or raises
        `UnreplicatedEnqueueError` after `replicas_timeout_ms`."""
        self.config = config
        self.operations = StreamOperations(
            redis,
            config,
            limits,
            awaits=False,
            min_replicas=min_replicas,
            replicas_timeout_ms=replicas_timeout_ms,
        )
        run(self.operations.create_group())

    def enqueue(self, payload: Payload) -> str:
        """Add a payload with one XADD, and return its entry id."""
        return run(self.operations.enqueue(payload))

    def enqueue_many(self, payloads: Iterable[Payload]) -> list[str]:
        """Add payloads; return their ids in order. All are checked first; up to 1,000 (or 4 MiB) are added atomically.

        If a later step fails, `PartialEnqueueError` says what is in the stream.
        """
        return run(self.operations.enqueue_many(payloads))

    def read(self, block_ms: int, count: int = 1) -> list[QueueMessage]:
        """Return up to `count` new messages, waiting up to `block_ms` for the first. They are now pending.

        Raises `MalformedEntryError` if entries have the wrong format; it carries the valid messages.
        """
        return run(self.operations.read(block_ms, count))

    def ack(self, msg: QueueMessage | MalformedEntry) -> None:
        """Acknowledge a message. It is not an error if it is no longer pending."""
        run(self.operations.ack(msg))

    def ack_many(self, msgs: Sequence[QueueMessage | MalformedEntry]) -> int:
        """Acknowledge messages in one call, and return how many of them were pending."""
        return run(self.operations.ack_many(msgs))

    def ack_if_owner(self, msg: QueueMessage | MalformedEntry) -> None:
        """Acknowledge atomically if this consumer still holds the entry; otherwise raise `LeaseLostError`."""
        run(self.operations.ack_if_owner(msg))

    def claim_stale(self, min_idle_ms: int, count: int = 10) -> ClaimedMessages:
        """Take over up to `count` messages that have been pending and idle for `min_idle_ms`. Best effort."""
        return run(self.operations.claim_stale(min_idle_ms, count))

    def backlog_stats(self) -> BacklogStats:
        """Return how full the stream and the group are. Bounded cost, no side effects, best effort."""
        return run(self.operations.backlog_stats())


class AsyncRedisStreamsQueue:
    """`RedisStreamsQueue` for asyncio: the same operations, awaited. Use `await create(…)`."""

    def __init__(
        self,
        redis: AsyncRedis | AsyncRedisCluster,
        config: QueueConfig,
        *,
        limits: PayloadLimits = DEFAULT_LIMITS,
        min_replicas: int = 0,
        replicas_timeout_ms: int = 1_000,
    ) -> None:
        """Without creating the group: use `create`."""
        self.config = config
        self.operations = StreamOperations(
            redis,
            config,
            limits,
            awaits=True,
            min_replicas=min_replicas,
            replicas_timeout_ms=replicas_timeout_ms,
            create="await AsyncRedisStreamsQueue.create(redis, config)",
        )

    @classmethod
    async def create(
        cls,
        redis: AsyncRedis | AsyncRedisCluster,
        config: QueueConfig,
        *,
        limits: PayloadLimits = DEFAULT_LIMITS,
        min_replicas: int = 0,
        replicas_timeout_ms: int = 1_000,
    ) -> AsyncRedisStreamsQueue:
        queue = cls(
            redis, config, limits=limits, min_replicas=min_replicas, replicas_timeout_ms=replicas_timeout_ms
        )
        await run_async(queue.operations.create_group())
        return queue

    async def enqueue(self, payload: Payload) -> str:
        return await run_async(self.operations.enqueue(payload))

    async def enqueue_many(self, payloads: Iterable[Payload]) -> list[str]:
        return await run_async(self.operations.enqueue_many(payloads))

    async def read(self, block_ms: int, count: int = 1) -> list[QueueMessage]:
        return await run_async(self.operations.read(block_ms, count))

    async def ack(self, msg: QueueMessage | MalformedEntry) -> None:
        await run_async(self.operations.ack(msg))

    async def ack_many(self, msgs: Sequence[QueueMessage | MalformedEntry]) -> int:
        return await run_async(self.operations.ack_many(msgs))

    async def ack_if_owner(self, msg: QueueMessage | MalformedEntry) -> None:
        await run_async(self.operations.ack_if_owner(msg))

    async def claim_stale(self, min_idle_ms: int, count: int = 10) -> ClaimedMessages:
        return await run_async(self.operations.claim_stale(min_idle_ms, count))

    async def backlog_stats(self) -> BacklogStats:
        return await run_async(self.operations.backlog_stats())
