"""A queue on Redis Streams: at-least-once delivery, explicit acknowledgement, no hidden retries."""

from conquiet.errors import (
    GroupLostError,
    LeaseLostError,
    MalformedEntryError,
    MissingDependencyError,
    PartialEnqueueError,
    QueueAccessError,
    QueueAnswerError,
    QueueConfigError,
    QueueConnectionError,
    QueueError,
    QueueOutcomeUnknownError,
    QueuePayloadError,
    QueueRefusedError,
    UnreplicatedEnqueueError,
)

try:
    import redis as _redis

    if int(_redis.__version__.partition(".")[0]) < 5:
        raise ImportError(f"redis-py {_redis.__version__} is too old")
except ImportError as error:
    raise MissingDependencyError(
        'conquiet.queue needs the package redis, version 5 or newer: pip install "conquiet[redis]"'
    ) from error

from conquiet.queue.config import QueueConfig, unique_consumer_name
from conquiet.queue.connection import connect, connect_async
from conquiet.queue.consumer import (
    AsyncDbFactory,
    AsyncDbTx,
    AsyncQueueConsumer,
    DbFactory,
    DbTx,
    QueueConsumer,
)
from conquiet.queue.message import BacklogStats, ClaimedMessages, MalformedEntry, QueueMessage
from conquiet.queue.streams import AsyncRedisStreamsQueue, RedisStreamsQueue
from conquiet.queue.transactions import (
    HandledEntries,
    NoTransactions,
    PsycopgTransactions,
    SqlAlchemyTransactions,
    SqliteTransactions,
)

__all__ = [
    "AsyncDbFactory",
    "AsyncDbTx",
    "AsyncQueueConsumer",
    "AsyncRedisStreamsQueue",
    "BacklogStats",
    "ClaimedMessages",
    "DbFactory",
    "DbTx",
    "GroupLostError",
    "HandledEntries",
    "LeaseLostError",
    "MalformedEntry",
    "MalformedEntryError",
    "NoTransactions",
    "PartialEnqueueError",
    "PsycopgTransactions",
    "QueueAccessError",
    "QueueAnswerError",
    "QueueConfig",
    "QueueConfigError",
    "QueueConnectionError",
    "QueueConsumer",
    "QueueError",
    "QueueMessage",
    "QueueOutcomeUnknownError",
    "QueuePayloadError",
    "QueueRefusedError",
    "RedisStreamsQueue",
    "SqlAlchemyTransactions",
    "SqliteTransactions",
    "UnreplicatedEnqueueError",
    "connect",
    "connect_async",
    "unique_consumer_name",
]
