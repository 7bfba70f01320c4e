"""Creating a queue creates its stream and group, once and never again."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis

from conquiet.embedded import RedisServer
from conquiet.queue import GroupLostError, QueueConnectionError, QueueError
from tests.integration.queue.monitor import Monitor
from tests.integration.queue.stream import Stream
from tests.integration.queue.variants import GROUP, STREAM

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
        pytest.param(demand_a_password, "already authenticated", id="NOAUTH"),
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
    with pytest.raises(QueueConnectionError, match="refused|Connect call failed") as caught:
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
