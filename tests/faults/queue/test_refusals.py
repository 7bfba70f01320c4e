"""Refusals of a real Redis: the error is named, nothing acknowledged is lost, and work goes on afterwards."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from conquiet.embedded import RedisServer
from conquiet.queue import (
    GroupLostError,
    NoTransactions,
    QueueConfig,
    QueueConsumer,
    QueueError,
    QueueRefusedError,
    RedisStreamsQueue,
    connect,
)
from tests.faults.figures import Record

STREAM, GROUP = "faults", "group"
SETTINGS = QueueConfig(STREAM, GROUP, "alice", block_ms=100, claim_idle_ms=1)
pytestmark = pytest.mark.campaign  # always runs in full; part of the campaign's list


@pytest.fixture(scope="module")
def server(redis_server: RedisServer) -> Iterator[RedisServer]:
    """A server of the test's own, because its settings are changed."""
    with RedisServer(binary=redis_server.binary) as private:
        yield private


@pytest.fixture
def client(server: RedisServer) -> Iterator[redis.Redis]:
    with connect(server.url) as made:
        made.flushall()
        yield made


@pytest.fixture
def queue(client: redis.Redis) -> RedisStreamsQueue:
    """A queue with five messages, two of them held."""
    queue = RedisStreamsQueue(client, SETTINGS)
    queue.enqueue_many({"n": n} for n in range(5))
    assert len(queue.read(1000, 2)) == 2
    return queue


def drained(queue: RedisStreamsQueue) -> list[int]:
    """The numbers of all messages, held ones first. All are acknowledged."""
    messages = [*queue.claim_stale(0, 1000), *queue.read(100, 1000)]
    queue.ack_many(messages)
    assert queue.backlog_stats().pending == 0
    return sorted(message.payload["n"] for message in messages)


def refusal(kind: type[QueueError], text: str, *calls: Any) -> int:
    """Check that each call is refused with this error. Returns how many calls there were."""
    for call in calls:
        with pytest.raises(kind, match=text) as caught:
            call()
        assert type(caught.value) is kind
        assert isinstance(caught.value.__cause__, redis.ResponseError)
    return len(calls)


def test_oom(
    server: RedisServer, client: redis.Redis, queue: RedisStreamsQueue, record_figure: Record
) -> None:
    """maxmemory is reached: nothing more can be enqueued, and what is there can be handled."""
    client.config_set("maxmemory", 1)
    try:
        refused = refusal(
            QueueRefusedError,
            "OOM|maxmemory",
            lambda: queue.enqueue({"n": 5}),
            lambda: queue.enqueue_many([{}]),
        )
        found = drained(queue)
    finally:
        client.config_set("maxmemory", 0)
    queue.enqueue({"n": 6})
    record_figure(f"{server.flavour}: OOM", n=refused, lost=5 - len(found), whole=True)
    assert found == [0, 1, 2, 3, 4]
    assert drained(queue) == [6]


def test_readonly(
    server: RedisServer, client: redis.Redis, queue: RedisStreamsQueue, record_figure: Record
) -> None:
    """The server has become a replica, as after a failover: every write is refused."""
    (held,) = queue.claim_stale(0, 1)
    client.execute_command("REPLICAOF", "127.0.0.1", "1")  # nothing listens there: the replica keeps its data
    try:
        refused = refusal(
            *(QueueRefusedError, "READONLY|read only replica"),
            *(lambda: queue.enqueue({"n": 5}), lambda: queue.enqueue_many([{}]), lambda: queue.read(50)),
            *(lambda: queue.ack(held), lambda: queue.claim_stale(0)),
        )
        assert queue.backlog_stats().pending == 2
    finally:
        client.execute_command("REPLICAOF", "NO", "ONE")
    found = drained(queue)
    record_figure(f"{server.flavour}: READONLY", n=refused, lost=5 - len(found), whole=True)
    assert found == [0, 1, 2, 3, 4]


def test_nogroup(
    server: RedisServer, client: redis.Redis, queue: RedisStreamsQueue, record_figure: Record
) -> None:
    """The group is removed while messages are pending: it is reported, not recreated; all entries are still there."""
    (held,) = queue.claim_stale(0, 1)
    client.xgroup_destroy(STREAM, GROUP)
    refused = refusal(
        *(GroupLostError, "the consumer group is gone .* make a new queue object"),
        *(lambda: queue.read(50), lambda: queue.claim_stale(0), queue.backlog_stats),
    )
    queue.ack(held)  # acknowledging a message that is not pending is no error
    assert client.xinfo_groups(STREAM) == []
    found = drained(RedisStreamsQueue(client, SETTINGS))  # from the first entry on, as the error says
    record_figure(f"{server.flavour}: NOGROUP", n=refused, lost=5 - len(found), whole=True)
    assert found == [0, 1, 2, 3, 4]


def test_wrongtype(
    server: RedisServer, client: redis.Redis, queue: RedisStreamsQueue, record_figure: Record
) -> None:
    """Another program has put a value of another type under the stream's name."""
    (held,) = queue.claim_stale(0, 1)
    client.rename(STREAM, "aside")
    client.set(STREAM, "something else")
    refused = refusal(
        *(QueueRefusedError, "WRONGTYPE|wrong kind of value"),
        *(lambda: queue.enqueue({}), lambda: queue.read(50), lambda: queue.ack(held)),
        *(lambda: queue.claim_stale(0), queue.backlog_stats),
    )
    assert client.get(STREAM) == b"something else"
    client.rename("aside", STREAM)
    found = drained(queue)
    record_figure(f"{server.flavour}: WRONGTYPE", n=refused, lost=5 - len(found), whole=True)
    assert found == [0, 1, 2, 3, 4]


def test_script_flush(
    server: RedisServer, client: redis.Redis, queue: RedisStreamsQueue, record_figure: Record
) -> None:
    """SCRIPT FLUSH again and again while scripts are used."""
    over = threading.Event()
    flushes = 0

    def flush() -> None:
        nonlocal flushes
        while not over.is_set():
            client.script_flush()
            flushes += 1

    thread = threading.Thread(target=flush)
    thread.start()
    try:
        for n in range(5, 205, 2):
            queue.enqueue_many([{"n": n}, {"n": n + 1}])
            messages = queue.read(1000, 1)
            queue.ack_if_owner(messages[0])
    finally:
        over.set()
        thread.join()
    found = drained(queue)
    record_figure(f"{server.flavour}: SCRIPT FLUSH", n=flushes, lost=205 - 100 - len(found), whole=True)
    assert len(found) == 105
    assert flushes > 10


def test_trimmed_while_pending(
    server: RedisServer,
    client: redis.Redis,
    queue: RedisStreamsQueue,
    caplog: pytest.LogCaptureFixture,
    record_figure: Record,
) -> None:
    """A trimmed entry cannot be read any more: it is named, and the rest goes on."""
    entries = [entry_id.decode() for entry_id, _ in client.xrange(STREAM)]
    client.xtrim(STREAM, minid=entries[1], approximate=False)  # the first of the two held entries
    assert len(queue.read(1000, 3)) == 3  # recovery gives way to new messages
    handled: list[int] = []
    consumer = QueueConsumer(client, SETTINGS)

    def handle(message: Any, tx: Any) -> None:
        handled.append(message.payload["n"])
        consumer.stop()

    consumer.run_recovery(handler=handle, db_factory=NoTransactions(), interval_ms=1)
    assert handled == [1]
    (said,) = [
        record.getMessage() for record in caplog.records if "trimmed or deleted" in record.getMessage()
    ]
    assert entries[0] in said
    found = drained(queue)
    record_figure(f"{server.flavour}: stream trimmed while pending", n=1, lost=1, named_as_gone=1, whole=True)
    assert found == [2, 3, 4]


def test_deleted_while_pending(
    server: RedisServer, client: redis.Redis, queue: RedisStreamsQueue, record_figure: Record
) -> None:
    """The whole stream is gone, and its group with it: every call fails, none takes it for an empty queue."""
    (held,) = queue.claim_stale(0, 1)
    client.delete(STREAM)
    refused = refusal(
        *(GroupLostError, "the consumer group is gone"),
        *(lambda: queue.read(50), lambda: queue.claim_stale(0), queue.backlog_stats),
    )
    queue.ack(held)
    assert not client.exists(STREAM)
    again = RedisStreamsQueue(client, SETTINGS)
    again.enqueue({"n": 9})
    record_figure(
        f"{server.flavour}: stream deleted while pending", n=1, lost=5, calls_refused=refused, whole=True
    )
    assert drained(again) == [9]
