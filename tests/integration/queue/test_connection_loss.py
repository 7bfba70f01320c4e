"""A connection that breaks, a server that dies, hangs or refuses: an error at once, nothing sent twice or mixed up."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from conquiet.embedded import RedisServer
from conquiet.queue import QueueAccessError, QueueConnectionError, QueueError, QueueRefusedError
from tests.integration.queue.gate import Gate
from tests.integration.queue.monitor import Monitor
from tests.integration.queue.recording import Recording
from tests.integration.queue.stream import Stream
from tests.integration.queue.variants import STREAM


def client_with_retries(queues: Any, url: str) -> Any:
    """A client that a user may pass in: configured to retry everything."""
    options: dict[str, Any] = {"retry_on_error": [redis.ConnectionError, redis.TimeoutError]}
    if queues.name == "sync":
        return queues.keep(redis.Redis.from_url(url, retry=Retry(NoBackoff(), 5), **options))
    return queues.keep(redis.asyncio.Redis.from_url(url, retry=AsyncRetry(NoBackoff(), 5), **options))


@pytest.mark.clause("S-26", "S-29", "C-14")
def test_a_connection_dropped_in_a_blocking_read_is_told_at_once(
    queues: Any, stream: Stream, monitor: Monitor, beside: ThreadPoolExecutor
) -> None:
    consumer = queues.consumer()
    monitor.commands()
    reading = beside.submit(consumer.next, 20_000)
    stream.wait_for_reader()
    (blocked,) = [client for client in stream.raw.client_list() if "b" in client["flags"]]
    stream.raw.client_kill_filter(_id=blocked["id"])
    with pytest.raises(QueueConnectionError, match="^read on stream .* Nothing was retried") as caught:
        reading.result(timeout=10)
    assert isinstance(caught.value.__cause__, redis.ConnectionError)
    assert len(monitor.commands("XREADGROUP")) == 1
    stream.add("{}")
    assert consumer.next(1000) is not None  # the same object, on a new connection


@pytest.mark.clause("S-10", "S-26", "C-14")
@pytest.mark.parametrize("make_client", [client_with_retries, lambda queues, url: queues.client(url)])
@pytest.mark.parametrize("command", ["XADD", "XREADGROUP", "XACK", "XPENDING", "XCLAIM", "XGROUP"])
def test_no_command_is_ever_sent_twice(
    queues: Any, gate: Gate, monitor: Monitor, command: str, make_client: Callable[[Any, str], Any]
) -> None:
    client = make_client(queues, gate.url)
    if command == "XGROUP":
        gate.lose_reply_to(command)
        with pytest.raises(QueueConnectionError):
            queues.queue(client=client)
    else:
        queue = queues.queue(client=client)
        queue.enqueue({})
        (message,) = queue.read(1000)
        call = {
            "XADD": lambda: queue.enqueue({}),
            "XREADGROUP": lambda: queue.read(50),
            "XACK": lambda: queue.ack(message),
            "XPENDING": lambda: queue.claim_stale(0),
            "XCLAIM": lambda: queue.claim_stale(0),
        }[command]
        monitor.commands()
        gate.lose_reply_to(command)
        with pytest.raises(QueueConnectionError):
            call()
    assert len(monitor.commands(command)) == 1


@pytest.mark.clause("C-14")
def test_a_message_whose_delivery_was_lost_on_the_way_is_pending(
    queues: Any, gate: Gate, stream: Stream
) -> None:
    consumer = queues.consumer(client=queues.client(gate.url))
    (entry_id,) = stream.add('{"n": 1}')
    gate.lose_reply_to("XREADGROUP")
    with pytest.raises(QueueConnectionError):
        consumer.next(1000)
    assert stream.pending() == {entry_id: "alice"}
    assert [m.id for m in consumer.claim_stale(0)] == [entry_id]


@pytest.mark.clause("C-14", "S-29")
def test_a_server_that_dies_and_comes_back(queues: Any, private: RedisServer) -> None:
    queue = queues.queue(client=queues.client(private.url))
    consumer = queues.consumer(client=queues.client(private.url))
    queue.enqueue_many([{"n": 1}, {"n": 2}])
    message = consumer.next(1000)
    recording = Recording()
    calls: list[Callable[[], object]] = [
        lambda: consumer.next(1000),
        lambda: list(consumer.iter_messages()),
        lambda: consumer.run(handler=recording.handle, db_factory=recording),
        lambda: consumer.run_recovery(handler=recording.handle, db_factory=recording),
        lambda: consumer.ack(message),
        lambda: consumer.claim_stale(0),
        lambda: consumer.backlog_stats(),
        lambda: queue.enqueue({}),
        lambda: queue.enqueue_many([{}]),
        lambda: queue.ack_if_owner(message),
    ]
    private.kill()
    for call in calls:
        with pytest.raises(QueueConnectionError) as caught:
            call()
        assert isinstance(caught.value.__cause__, redis.ConnectionError)
    assert recording.events == []
    private.start()
    # The queue keeps no connection state: the next call simply works.
    assert [m.id for m in consumer.claim_stale(0)] == [message.id]
    queue.ack_if_owner(message)
    assert consumer.next(1000).payload == {"n": 2}
    queue.enqueue({"n": 3})
    assert consumer.next(1000).payload == {"n": 3}


def test_a_server_that_hangs_in_a_blocking_read(
    queues: Any, private: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not an empty read, and no other call gets the late reply."""
    monkeypatch.setattr("conquiet.queue.wire.exchange._GRACE_SECONDS", 0.2)
    queue = queues.queue(client=queues.client(private.url, max_connections=1))
    private.pause()
    with pytest.raises(QueueConnectionError):
        queue.read(100)
    private.resume()
    check_that_replies_are_in_order(queue, private.url)


def test_a_server_that_hangs_in_a_short_call(queues: Any, private: RedisServer) -> None:
    queue = queues.queue(client=queues.client(private.url, socket_timeout=0.2, max_connections=1))
    private.pause()
    with pytest.raises(QueueConnectionError):
        queue.enqueue({"late": True})
    private.resume()
    check_that_replies_are_in_order(queue, private.url)


def check_that_replies_are_in_order(queue: Any, url: str) -> None:
    with redis.Redis.from_url(url, decode_responses=True) as raw:
        for number in range(3):
            entry_id = queue.enqueue({"n": number})
            ((_, fields),) = raw.xrange(STREAM, entry_id, entry_id)
            assert json.loads(fields["data"]) == {"n": number}
        assert [m.payload for m in queue.read(1000, 10) if "n" in m.payload] == [{"n": n} for n in range(3)]


class InterruptedConnection(redis.Connection):
    """Ctrl-C arrives when the command is sent and its reply is on the way."""

    armed = False

    def read_response(self, *args: Any, **options: Any) -> Any:
        if InterruptedConnection.armed:
            InterruptedConnection.armed = False
            raise KeyboardInterrupt
        return super().read_response(*args, **options)


class InterruptedAsyncConnection(redis.asyncio.Connection):
    async def read_response(self, *args: Any, **options: Any) -> Any:
        if InterruptedConnection.armed:
            InterruptedConnection.armed = False
            raise KeyboardInterrupt
        return await super().read_response(*args, **options)


def test_an_interrupt_between_command_and_reply_leaves_no_reply_behind(queues: Any, redis_url: str) -> None:
    connection_class = InterruptedConnection if queues.name == "sync" else InterruptedAsyncConnection
    queue = queues.queue(client=queues.client(connection_class=connection_class, max_connections=1))
    InterruptedConnection.armed = True
    with pytest.raises(KeyboardInterrupt):
        queue.enqueue({"interrupted": True})
    check_that_replies_are_in_order(queue, redis_url)


def test_failures_leak_no_connections(queues: Any, gate: Gate, raw: redis.Redis) -> None:
    queue = queues.queue(client=queues.client(gate.url, max_connections=1))
    for _ in range(5):
        gate.lose("XADD")
        with pytest.raises(QueueConnectionError):
            queue.enqueue({})
        with pytest.raises(QueueError):
            queue.enqueue({"a": {1}})
        raw.rename(STREAM, "aside")
        with pytest.raises(QueueError):
            queue.read(100)
        raw.rename("aside", STREAM)
        queue.enqueue({})


@pytest.mark.clause("S-29")
@pytest.mark.parametrize("trouble", ["WRONGTYPE", "OOM", "NOPERM"])
def test_every_refusal_of_redis_is_a_queue_error_with_it_as_the_cause(
    queues: Any, private: RedisServer, trouble: str
) -> None:
    queue = queues.queue(client=queues.client(private.url))
    queue.enqueue({})
    (message,) = queue.read(1000)
    calls: list[Callable[[], object]] = [lambda: queue.enqueue({}), lambda: queue.enqueue_many([{}])]
    with redis.Redis.from_url(private.url) as raw:
        if trouble == "OOM":
            raw.config_set("maxmemory", 1)
        else:
            calls += [
                lambda: queue.read(50),
                lambda: queue.ack(message),
                lambda: queue.ack_if_owner(message),
                lambda: queue.claim_stale(0),
                lambda: queue.backlog_stats(),
            ]
        if trouble == "WRONGTYPE":
            raw.delete(STREAM)
            raw.rpush(STREAM, "x")
        elif trouble == "NOPERM":
            raw.execute_command("ACL", "SETUSER", "default", "-@stream", "-@scripting")
    for call in calls:
        with pytest.raises(QueueError) as caught:
            call()
        assert type(caught.value) is (QueueAccessError if trouble == "NOPERM" else QueueRefusedError)
        assert isinstance(caught.value.__cause__, redis.ResponseError)
        assert f"stream '{STREAM}', group 'billing'" in str(caught.value)
