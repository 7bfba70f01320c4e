"""Fixtures of the queue's tests: both variants, a plain client beside them, and a view of the wire."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis

from conquiet.embedded import RedisServer
from tests.integration.queue.gate import Gate
from tests.integration.queue.monitor import Monitor
from tests.integration.queue.stream import Stream
from tests.integration.queue.variants import AsyncVariant, LoopThread, SyncVariant


@pytest.fixture(scope="session")
def loop_thread() -> Iterator[LoopThread]:
    loop = LoopThread()
    yield loop
    loop.close()


@pytest.fixture(params=["sync", "async"])
def variant(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def queues(variant: str, redis_url: str, loop_thread: LoopThread) -> Iterator[SyncVariant | AsyncVariant]:
    made = SyncVariant(redis_url) if variant == "sync" else AsyncVariant(redis_url, loop_thread)
    yield made
    made.close()


@pytest.fixture
def raw(redis_url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_url, decode_responses=True) as client:
        yield client


@pytest.fixture
def stream(raw: redis.Redis) -> Stream:
    return Stream(raw)


@pytest.fixture
def monitor(redis_url: str) -> Iterator[Monitor]:
    with Monitor(redis_url) as watching:
        yield watching


@pytest.fixture
def gate(redis_server: RedisServer) -> Iterator[Gate]:
    with Gate(redis_server) as proxy:
        yield proxy


@pytest.fixture
def private(redis_server: RedisServer) -> Iterator[RedisServer]:
    """A server of the test's own, to be killed, restarted and reconfigured; it keeps what it has acknowledged."""
    with RedisServer(binary=redis_server.binary, appendonly=True, appendfsync="always") as server:
        yield server


@pytest.fixture
def beside() -> Iterator[ThreadPoolExecutor]:
    """Threads for calls that block while the test goes on."""
    with ThreadPoolExecutor(8, thread_name_prefix="beside the test") as threads:
        yield threads
