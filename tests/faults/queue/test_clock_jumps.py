"""The clock of Redis jumps by an hour: what that leaves in a stream, and how consumers handle it.

The server reads the machine's clock, which a test cannot set. But for a stream it keeps only two kinds of times: the
ids of entries, and when each pending entry was delivered. These tests shift both by an hour: ids with XADD, deliveries
in the past with XCLAIM, and deliveries in the future, which no command accepts, in the file that the server loads.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from conquiet.embedded import RedisServer
from conquiet.queue import (
    HandledEntries,
    LeaseLostError,
    QueueConfig,
    QueueConsumer,
    QueueMessage,
    RedisStreamsQueue,
    SqliteTransactions,
    connect,
)
from tests.faults.figures import Record

pytestmark = pytest.mark.campaign  # always runs in full; part of the campaign's list

HOUR_MS = 3_600_000
IDLE_MS = 60_000
STREAM, GROUP = "clocks", "group"


def settings(name: str) -> QueueConfig:
    return QueueConfig(STREAM, GROUP, name, block_ms=50, claim_idle_ms=IDLE_MS)


@pytest.fixture
def server(redis_server: RedisServer) -> Iterator[RedisServer]:
    """A server of the test's own that loads the file as it is."""
    with RedisServer(binary=redis_server.binary, config={"rdbchecksum": False}) as private:
        yield private


@pytest.fixture
def client(server: RedisServer) -> Iterator[redis.Redis]:
    with connect(server.url) as made:
        yield made


def ids_of(messages: list[QueueMessage]) -> list[int | bytes | str | memoryview[int]]:
    """The ids, in the type that the client's annotation wants."""
    return [message.id for message in messages]


class Handling:
    """The effect of each message, under the fence: a row in a table without a key, so that a duplicate shows."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._database = sqlite3.connect(":memory:", isolation_level=None)
        self._handled = HandledEntries()
        self._handled.create_table(self._database)
        self._database.execute("CREATE TABLE effects (n INTEGER)")
        self._left = 0

    def close(self) -> None:
        self._database.close()

    def recover(self, name: str, count: int) -> None:
        """Run the real recovery loop until it has handled this many messages."""
        self._left = count
        consumer = QueueConsumer(self._client, settings(name))

        def handle(message: QueueMessage, tx: Any) -> None:
            self.effect(message, tx)
            self._left -= 1
            if not self._left:
                consumer.stop()

        consumer.run_recovery(handler=handle, db_factory=SqliteTransactions(self._database), interval_ms=1)

    def do(self, message: QueueMessage) -> None:
        """What a consumer does with a message that it already has: handle and commit."""
        tx = SqliteTransactions(self._database).begin()
        self.effect(message, tx)
        tx.commit()

    def effect(self, message: QueueMessage, tx: Any) -> None:
        if self._handled.first_time(tx, message):
            tx.execute("INSERT INTO effects VALUES (?)", (message.payload["n"],))

    def drain(self, queue: RedisStreamsQueue) -> None:
        while rest := queue.read(50, 1_000):
            for message in rest:
                self.do(message)
            queue.ack_many(rest)

    @property
    def numbers(self) -> list[int]:
        return sorted(n for (n,) in self._database.execute("SELECT n FROM effects"))


@pytest.fixture
def handling(client: redis.Redis) -> Iterator[Handling]:
    made = Handling(client)
    yield made
    made.close()


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def note(record_figure: Record, fault: str, messages: int, numbers: list[int], **more: Any) -> None:
    record_figure(
        fault,
        n=1,
        lost=messages - len(set(numbers)),
        doubled=len(numbers) - len(set(numbers)),
        messages=messages,
        whole=True,
        **more,
    )
    assert numbers == list(range(messages))


def test_an_hour_forwards_and_right_again(
    server: RedisServer, client: redis.Redis, handling: Handling, record_figure: Record
) -> None:
    """Everything held seems idle for an hour and is taken over immediately; then ids continue from an hour ahead."""
    alice, bob = (RedisStreamsQueue(client, settings(name)) for name in ("alice", "bob"))
    alice.enqueue_many({"n": n} for n in range(10))
    held = alice.read(1000, 10)
    assert bob.claim_stale(IDLE_MS) == []
    # Forwards: what alice holds was delivered an hour ago, and new entries have ids of that time.
    client.xclaim(STREAM, GROUP, "alice", 0, ids_of(held), time=now_ms() - HOUR_MS, justid=True)
    handling.recover("bob", 10)
    ahead = f"{now_ms() + HOUR_MS}-5"
    client.xadd(STREAM, {"data": json.dumps({"n": 10})}, id=ahead)
    refused = 0
    for message in held:  # alice was working all the time
        handling.do(message)
        with pytest.raises(LeaseLostError):
            alice.ack_if_owner(message)
        refused += 1
    # Right again: the stream's last id is an hour ahead of the clock.
    ids = [alice.enqueue({"n": n}) for n in range(11, 20)]
    assert [entry.partition("-")[0] for entry in ids] == [ahead.partition("-")[0]] * 9
    handling.drain(alice)
    assert (alice.backlog_stats().pending, alice.backlog_stats().lag) == (0, 0)
    note(
        *(record_figure, f"{server.flavour}: clock an hour forwards and right again", 20, handling.numbers),
        taken_over_from_a_living_consumer=refused,
        stale_settles_refused=refused,
    )


def test_an_hour_back(
    server: RedisServer, client: redis.Redis, handling: Handling, record_figure: Record
) -> None:
    """What is held seems delivered in the future: no one else gets it for that hour. Nothing else changes."""
    alice, bob, carol = (RedisStreamsQueue(client, settings(name)) for name in ("alice", "bob", "carol"))
    for n in range(12):  # enqueued before the jump: an hour ahead of the clock now
        client.xadd(STREAM, {"data": json.dumps({"n": n})}, id=f"{now_ms() + HOUR_MS}-{n + 1}")
    held, left = alice.read(1000, 4), bob.read(1000, 6)  # bob is dead
    delivered = now_ms() - 2 * IDLE_MS
    for name, messages in (("alice", held), ("bob", left)):
        client.xclaim(STREAM, GROUP, name, 0, ids_of(messages), time=delivered, justid=True)
    move_deliveries(server, client, 10, delivered, delivered + HOUR_MS)
    assert carol.claim_stale(IDLE_MS, 100) == []
    assert carol.backlog_stats().oldest_pending_idle_ms == 0
    for message in held:  # a live consumer is not disturbed
        handling.do(message)
        alice.ack_if_owner(message)
    fresh = [carol.enqueue({"n": n}) for n in range(12, 15)]
    assert all(int(entry.partition("-")[0]) > now_ms() + HOUR_MS // 2 for entry in fresh)
    handling.drain(carol)
    by_hand = carol.claim_stale(0, 2)  # immediately, for a caller who knows that bob is dead
    for message in by_hand:
        handling.do(message)
    carol.ack_many(by_hand)
    assert carol.backlog_stats().pending == 4
    move_deliveries(server, client, 4, delivered + HOUR_MS, delivered)  # the hour has passed
    handling.recover("carol", 4)
    assert (carol.backlog_stats().pending, carol.backlog_stats().lag) == (0, 0)
    note(
        *(record_figure, f"{server.flavour}: clock an hour back", 15, handling.numbers),
        recovered_an_hour_later=4,
        taken_by_hand=len(by_hand),
    )


def move_deliveries(server: RedisServer, client: redis.Redis, count: int, before: int, after: int) -> None:
    """Restart the server with the deliveries of one moment moved to another; the file holds them as plain numbers."""
    client.save()
    server.kill()
    file = server.folder / "data" / "dump.rdb"
    old, new = (moment.to_bytes(8, "little") for moment in (before, after))
    data = file.read_bytes()
    assert data.count(old) == count
    file.write_bytes(data.replace(old, new))
    server.start()
