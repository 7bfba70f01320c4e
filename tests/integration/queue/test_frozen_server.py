"""A server that stops answering: the read ends with an error, and no later call gets its reply."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from conquiet.embedded import RedisServer
from conquiet.errors import QueueConnectionError
from conquiet.queue import (
    AsyncRedisStreamsQueue,
    QueueConfig,
    RedisStreamsQueue,
    connect,
    connect_async,
)
from conquiet.queue.wire import exchange

CONFIG = QueueConfig("stream", "group", "consumer")


@pytest.fixture
def frozen(monkeypatch: pytest.MonkeyPatch) -> Iterator[RedisServer]:
    monkeypatch.setattr(exchange, "_GRACE_SECONDS", 0.2)
    with RedisServer() as server:
        yield server


def test_sync(frozen: RedisServer) -> None:
    with connect(frozen.url, max_connections=1) as redis:
        queue = RedisStreamsQueue(redis, CONFIG)
        queue.enqueue({"n": 1})
        frozen.pause()
        with pytest.raises(QueueConnectionError):
            queue.read(50)
        frozen.resume()
        assert queue.backlog_stats().length == 1


def test_async(frozen: RedisServer) -> None:
    async def main() -> None:
        async with connect_async(frozen.url, max_connections=1) as redis:
            queue = await AsyncRedisStreamsQueue.create(redis, CONFIG)
            await queue.enqueue({"n": 1})
            frozen.pause()
            with pytest.raises(QueueConnectionError):
                await queue.read(50)
            frozen.resume()
            assert (await queue.backlog_stats()).length == 1

    asyncio.run(main())
