"""Creating a queue creates its stream and group, once and never again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis

from conquiet.embedded import RedisServer
from conquiet.queue import (
    AsyncQueueConsumer,
    AsyncRedisStreamsQueue,
    GroupLostError,
    QueueConnectionError,
    QueueError,
    QueueRefusedError,
    connect_async,
)
from tests.integration.queue.gate import Gate
from tests.integration.queue.monitor import Monitor
from tests.integration.queue.redis70 import Redis70
from tests.integration.queue.stream import Stream
from tests.integration.queue.variants import GROUP, STREAM, settings

MAKERS = ("queue", "consumer")


@pytest.mark.clause("S-01")
@pytest.mark.parametrize("maker", MAKERS)
def test_making_one_creates_the_stream_and_the_group(
    queues: Any, raw: redis.Redis, monitor: Monitor, maker: str
) -> None:
    getattr(queues, maker)()
    assert monitor.commands() == [("XGROUP", "CREATE", STREAM, GROUP, "0-0", "MKSTREAM")]
    assert raw.xlen(STREAM) == 0
    assert [group["name"] for group in raw.xinfo_groups(STREAM)] == [GROUP]


@pytest.mark.clause("S-01")
def test_the_group_begins_with_what_was_in_the_stream_before_it(queues: Any, stream: Stream) -> None:
    ids = stream.add('{"n": 1}', '{"n": 2}')
    assert [message.id for message in queues.queue().read(100, 10)] == ids


@pytest.mark.clause("S-02")
@pytest.mark.parametrize("maker", MAKERS)
def test_a_group_that_exists_keeps_its_position_and_what_is_pending(
    queues: Any, stream: Stream, maker: str
) -> None:
    first = queues.queue("alice")
    first.enqueue({"n": 1})
    first.enqueue({"n": 2})
    (held,) = first.read(100)
    getattr(queues, maker)("bob")
    assert stream.pending() == {held.id: "alice"}
    assert [message.payload for message in queues.queue("bob").read(100, 10)] == [{"n": 2}]


def make_a_list(url: str) -> None:
    with redis.Redis.from_url(url) as client:
        client.rpush(STREAM, "this key is no stream")


def make_a_replica(url: str) -> None:
    """A replica without a reachable master: it answers, and refuses writes."""
    with redis.Redis.from_url(url) as client:
        client.replicaof("127.0.0.1", 1)


def demand_a_password(url: str) -> None:
    with redis.Redis.from_url(url) as client:
        client.config_set("requirepass", "s3cret")


@pytest.mark.clause("S-03", "S-29")
@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize(
    ("trouble", "said"),
    [
        pytest.param(make_a_list, "WRONGTYPE", id="WRONGTYPE"),
        pytest.param(make_a_replica, "READONLY|can't write against a read only replica", id="READONLY"),
        pytest.param(demand_a_password, "NOAUTH|invalid username-password pair", id="NOAUTH"),
    ],
)
def test_every_other_error_of_the_group_creation_is_raised(
    queues: Any, private: RedisServer, maker: str, trouble: Callable[[str], None], said: str
) -> None:
    trouble(private.url)
    with pytest.raises(QueueError, match=said) as caught:
        getattr(queues, maker)(client=queues.client(private.url))
    assert isinstance(caught.value.__cause__, redis.RedisError)
    assert f"create the consumer group on stream '{STREAM}', group '{GROUP}'" in str(caught.value)


@pytest.mark.clause("S-03", "S-29")
@pytest.mark.parametrize("maker", MAKERS)
def test_a_server_that_is_not_there_is_an_error_at_once(
    queues: Any, private: RedisServer, maker: str
) -> None:
    url = private.url
    private.stop()
    with pytest.raises(QueueConnectionError, match="refused|Connect call failed|Error 111") as caught:
        getattr(queues, maker)(client=queues.client(url))
    assert isinstance(caught.value.__cause__, redis.ConnectionError)


@pytest.mark.clause("S-04")
@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda queue, message: queue.read(100), id="read"),
        pytest.param(lambda queue, message: queue.claim_stale(0), id="claim_stale"),
        pytest.param(lambda queue, message: queue.ack_if_owner(message), id="ack_if_owner"),
        pytest.param(lambda queue, message: queue.backlog_stats(), id="backlog_stats"),
    ],
)
@pytest.mark.parametrize("loss", ["group", "stream"])
def test_a_lost_group_is_an_error_and_is_not_created_again(
    queues: Any, raw: redis.Redis, call: Callable[[Any, Any], object], loss: str
) -> None:
    queue = queues.queue()
    queue.enqueue({})
    (message,) = queue.read(100)
    if loss == "group":
        raw.xgroup_destroy(STREAM, GROUP)
    else:
        raw.delete(STREAM)
    for _ in range(2):
        with pytest.raises(GroupLostError, match="group is gone .* make a new queue object") as caught:
            call(queue, message)
        assert isinstance(caught.value.__cause__, redis.ResponseError)
    assert raw.exists(STREAM) == (loss == "group")
    if loss == "group":
        assert raw.xinfo_groups(STREAM) == []


@pytest.mark.clause("S-04")
def test_a_group_destroyed_during_a_blocking_read_ends_it(
    queues: Any, stream: Stream, beside: ThreadPoolExecutor
) -> None:
    reading = beside.submit(queues.queue().read, 20_000)
    stream.wait_for_reader()
    stream.raw.xgroup_destroy(STREAM, GROUP)
    with pytest.raises(GroupLostError):
        reading.result(timeout=10)


@pytest.mark.clause("S-04")
def test_the_consumer_raises_for_a_lost_group_too(queues: Any, raw: redis.Redis) -> None:
    consumer = queues.consumer()
    raw.xgroup_destroy(STREAM, GROUP)
    for call in (consumer.next, consumer.claim_stale, lambda: list(consumer.iter_messages())):
        with pytest.raises(GroupLostError):
            call()
    assert raw.xinfo_groups(STREAM) == []


@pytest.mark.parametrize("how", ["delete", "rename", "flush"])
def test_a_stream_that_goes_during_a_blocked_read_of_redis_70_is_a_lost_group_too(
    queues: Any,
    redis_url: str,
    redis_server: RedisServer,
    raw: redis.Redis,
    stream: Stream,
    beside: ThreadPoolExecutor,
    how: str,
) -> None:
    with Redis70(redis_server.port) as redis70:
        url = redis_url.replace(f":{redis_server.port}/", f":{redis70.port}/")
        consumer = queues.consumer(client=queues.client(url))
        reading = beside.submit(consumer.next, 20_000)
        stream.wait_for_reader()
        {
            "delete": lambda: raw.delete(STREAM),
            "rename": lambda: raw.rename(STREAM, "x"),
            "flush": raw.flushdb,
        }[how]()
        with pytest.raises(GroupLostError, match="UNBLOCKED the stream key no longer exists"):
            reading.result(timeout=10)
    assert redis70.rewritten == 1


def test_a_read_that_an_operator_unblocks_is_no_lost_group(
    queues: Any, raw: redis.Redis, stream: Stream, beside: ThreadPoolExecutor
) -> None:
    consumer = queues.consumer(client=queues.client(client_name="blocked"))
    reading = beside.submit(consumer.next, 20_000)
    stream.wait_for_reader()
    (blocked,) = [int(client["id"]) for client in raw.client_list() if client["name"] == "blocked"]
    raw.client_unblock(blocked, error=True)
    with pytest.raises(QueueRefusedError, match="UNBLOCKED client unblocked") as caught:
        reading.result(timeout=10)
    assert caught.value.code == "UNBLOCKED"


@pytest.mark.parametrize("kind", [AsyncQueueConsumer, AsyncRedisStreamsQueue])
def test_an_asyncio_object_made_without_create_says_so(redis_url: str, kind: Any) -> None:
    async def use() -> None:
        async with connect_async(redis_url) as client:
            made = kind(client, settings())
            if kind is AsyncQueueConsumer:
                await made.next(10)
            else:
                await made.read(10)

    with pytest.raises(
        GroupLostError, match=rf"use await {kind.__name__}\.create\(redis, config\)"
    ) as caught:
        asyncio.run(use())
    assert "pending entries are lost" not in str(caught.value)


def test_a_message_delivered_while_the_backlog_is_counted_is_counted(queues: Any, gate: Gate) -> None:
    """It was neither pending when the pending ones were counted nor undelivered when those were."""
    reader = queues.queue("reader")
    reader.enqueue({"n": 1})
    gate.before("XINFO", lambda: reader.read(1000))
    stats = queues.queue("watcher", client=queues.client(gate.url)).backlog_stats()
    assert (stats.lag, stats.pending) == (0, 1)
