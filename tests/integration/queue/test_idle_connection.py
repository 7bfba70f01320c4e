"""A connection that was closed while it was idle: noticed before anything is sent on it, so nothing fails or is sent twice."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from typing import Any

import pytest
import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from conquiet.embedded import RedisServer
from conquiet.queue import (
    AsyncQueueConsumer,
    NoTransactions,
    QueueConnectionError,
    QueueRefusedError,
    connect_async,
)
from tests.integration.queue.monitor import Monitor
from tests.integration.queue.recording import Recording
from tests.integration.queue.stream import Stream, wait_until
from tests.integration.queue.variants import STREAM, settings

NAME = "closed-while-idle"


def close_idle_connections(raw: redis.Redis) -> None:
    """What `timeout` in the server's configuration does, without the wait."""

    def named() -> list[Any]:
        return [client for client in raw.client_list() if client["name"] == NAME]

    assert named()
    for client in named():
        raw.client_kill_filter(_id=client["id"])
    wait_until(lambda: not named(), "the connections to be closed")


@pytest.mark.clause("S-10", "S-26")
def test_an_idle_connection_that_the_server_closed_is_opened_anew(
    queues: Any, stream: Stream, raw: redis.Redis, monitor: Monitor
) -> None:
    queue = queues.queue(client=queues.client(client_name=NAME))
    first = queue.enqueue({"n": 1})
    close_idle_connections(raw)
    monitor.commands()
    second = queue.enqueue({"n": 2})
    assert monitor.commands("XADD") == [("XADD", STREAM, "*", "data", '{"n":2}')]
    assert list(stream.entries()) == [first, second]


@pytest.mark.clause("C-01", "C-05")
def test_a_handler_that_outlives_the_connection_has_its_message_acknowledged(
    queues: Any, stream: Stream, raw: redis.Redis
) -> None:
    stream.add("{}", "{}")
    consumer = queues.consumer(client=queues.client(client_name=NAME))
    recording = Recording(
        handler=lambda: close_idle_connections(raw),
        commit=lambda: recording.events.count("commit") == 2 and consumer.stop(),
    )
    consumer.run(handler=recording.handle, db_factory=recording)
    assert recording.events.count("commit") == 2
    assert stream.pending() == {}


def test_it_is_noticed_even_if_the_event_loop_has_not_run_since(
    redis_url: str, stream: Stream, raw: redis.Redis
) -> None:
    """A handler without an await: asyncio has not read the end of the connection yet."""
    stream.add("{}")

    async def consume() -> None:
        async with connect_async(redis_url, client_name=NAME) as client:
            consumer = await AsyncQueueConsumer.create(client, settings())

            def handle(*_: object) -> None:
                close_idle_connections(raw)
                consumer.stop()

            await consumer.run(handler=handle, db_factory=NoTransactions())  # type: ignore[arg-type]

    asyncio.run(consume())
    assert stream.pending() == {}


def test_a_restart_between_two_enqueues_is_not_noticed(queues: Any, private: RedisServer) -> None:
    queue = queues.queue(client=queues.client(private.url))
    first = queue.enqueue({"n": 1})
    private.kill()
    private.start()
    second = queue.enqueue({"n": 2})
    with redis.Redis.from_url(private.url, decode_responses=True) as raw:
        assert [entry_id for entry_id, _ in raw.xrange(STREAM)] == [first, second]


def test_a_server_that_is_still_away_is_an_error_before_anything_is_sent(
    queues: Any, private: RedisServer
) -> None:
    queue = queues.queue(client=queues.client(private.url))
    private.kill()
    with pytest.raises(QueueConnectionError, match="Nothing was retried") as caught:
        queue.enqueue({})
    assert type(caught.value) is QueueConnectionError  # not an unknown outcome
    private.start()
    queue.enqueue({})


def test_a_client_that_retries_to_connect_is_told_apart(queues: Any) -> None:
    """redis.Redis(…) of redis-py 6 and newer tries several times by itself, which the queue does not hide."""
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    if queues.name == "sync":
        client: Any = redis.Redis(port=port, retry=Retry(NoBackoff(), 4))
    else:
        client = redis.asyncio.Redis(port=port, retry=AsyncRetry(NoBackoff(), 4))
    with pytest.raises(
        QueueConnectionError, match="the client itself tries to connect up to 5 times"
    ) as caught:
        queues.queue(client=queues.keep(client))
    assert "Nothing was retried" not in str(caught.value)
    assert "The command was not sent" in str(caught.value)


async def _one(url: str) -> Any:
    client = connect_async(url)
    return client, await AsyncQueueConsumer.create(client, settings(block_ms=10))


def test_an_object_in_a_second_event_loop_says_what_to_do(redis_url: str) -> None:
    with asyncio.Runner() as first, asyncio.Runner() as second:
        client, consumer = first.run(_one(redis_url))
        for again in (consumer.next, lambda: AsyncQueueConsumer.create(client, settings())):
            with pytest.raises(QueueRefusedError, match="belongs to another event loop") as caught:
                second.run(again())
            assert "Create the client and the queue in the loop that uses them" in str(caught.value)
        assert first.run(consumer.next()) is None  # in its own loop it still works
        first.run(client.aclose())
        assert second.run(consumer.next()) is None  # without open connections it may move
        second.run(client.aclose())


TWO_RUNS = """
import asyncio, sys
from conquiet.queue import AsyncQueueConsumer, QueueConfig, QueueRefusedError, connect_async

client = connect_async(sys.argv[1])
consumer = asyncio.run(AsyncQueueConsumer.create(client, QueueConfig("orders", "billing", "alice")))
try:
    asyncio.run(consumer.next(10))
except QueueRefusedError as error:
    print(error)
"""


def test_so_it_does_when_the_first_loop_is_closed(redis_url: str) -> None:
    """In a process of its own: nobody can close that connection any more, and Python complains about it."""
    command = [sys.executable, "-W", "ignore", "-c", TWO_RUNS, redis_url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert "the connection of this client belongs to another event loop" in done.stdout
