"""Answers that no Redis gives: each operation raises one of the queue's errors, and the next one works."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from conquiet.errors import ConquietError, OutcomeUnknownError, QueueError
from conquiet.queue import (
    AsyncRedisStreamsQueue,
    QueueConfig,
    QueueMessage,
    RedisStreamsQueue,
    connect,
    connect_async,
)
from conquiet.queue.wire import route_to
from conquiet.spark.source.batch import ConquietBatchReader
from conquiet.spark.source.blocks import Block
from conquiet.spark.source.ledger import Ledger
from conquiet.spark.source.options import SOURCE_SCHEMA
from conquiet.spark.source.reader import BlockReader
from tests.integration.queue.babbler import Babbler

CONFIG = QueueConfig("s", "g", "c", block_ms=50)
MESSAGE = QueueMessage("1-1", {}, "s", "g")

OPERATIONS: dict[str, Callable[[Any], Any]] = {
    "enqueue": lambda queue: queue.enqueue({}),
    "enqueue_many": lambda queue: queue.enqueue_many([{}, {}]),
    "read": lambda queue: queue.read(50, 10),
    "ack": lambda queue: queue.ack(MESSAGE),
    "ack_if_owner": lambda queue: queue.ack_if_owner(MESSAGE),
    "claim_stale": lambda queue: queue.claim_stale(0),
    "backlog_stats": lambda queue: queue.backlog_stats(),
}

# Not a reply of the protocol at all.
NO_REPLIES = [
    b"HTTP/1.1 400 Bad Request\r\n\r\n", b":abc\r\n", b"$x\r\n", b"*x\r\n", b"\xff\xfe\r\n", b"_\r\n", b"-\xff\xfe\r\n",
    b"%1\r\n+a\r\n+b\r\n", b"*1\r\n" * 100_000 + b":1\r\n", b"$5\r\nabc", b"*2\r\n:1\r\n", b"", b"\r\n", b":\r\n", b"*\r\n",
    b"$99999999999999999999\r\nabc\r\n", b":" + b"9" * 5_000 + b"\r\n",
]  # fmt: skip

# A valid reply, but not to any of these commands.
MISSHAPEN = [
    b":5\r\n", b"*1\r\n:1\r\n", b"*1\r\n$-1\r\n", b"*1\r\n*1\r\n:1\r\n", b"*1\r\n*2\r\n:1\r\n:2\r\n",
    b"*2\r\n$1\r\ns\r\n$3\r\nfoo\r\n", b"*1\r\n*2\r\n$1\r\ns\r\n$3\r\nfoo\r\n", b"*1\r\n*2\r\n$1\r\ns\r\n:7\r\n",
    b"*1\r\n*2\r\n$1\r\ns\r\n*1\r\n:7\r\n", b"*1\r\n*2\r\n$1\r\ns\r\n*1\r\n*2\r\n:7\r\n*0\r\n",
    b"*1\r\n*2\r\n$1\r\ns\r\n*1\r\n*2\r\n$2\r\n\xff\xfe\r\n*0\r\n", b"$2\r\n\xff\xfe\r\n", b"*4\r\n+a\r\n+b\r\n+c\r\n+d\r\n",
    b"*1\r\n*4\r\n*0\r\n*0\r\n*0\r\n*0\r\n", b"+OK\r\n", b"$-1\r\n", b"*-1\r\n", b"*0\r\n",
]  # fmt: skip


@pytest.mark.parametrize("way", ["sync", "async"])
@pytest.mark.parametrize("operation", ["enqueue", "enqueue_many", "ack"])
@pytest.mark.parametrize("answer", NO_REPLIES)
def test_after_an_answer_that_cannot_be_parsed_the_outcome_is_unknown(
    babbler: Babbler, operation: str, answer: bytes, way: str
) -> None:
    """The command has reached whoever answered, and may have been done."""
    error = outcome(babbler, operation, answer, way)
    # An error reply is one, whatever its text; and for the parser of the client an empty number is nothing at all.
    assert isinstance(error, OutcomeUnknownError) or answer == b"-\xff\xfe\r\n", error


@pytest.fixture(scope="module")
def babbler() -> Iterator[Babbler]:
    with Babbler() as babbler:
        yield babbler


def outcome(babbler: Babbler, operation: str, answer: bytes, way: str) -> Any:
    """The result: a value, or one of conquiet's errors. Any other error is raised."""
    babbler.answer = answer
    try:
        if way == "sync":
            with connect(babbler.url) as client:
                return OPERATIONS[operation](RedisStreamsQueue(client, CONFIG))
        return asyncio.run(outcome_async(babbler, operation))
    except ConquietError as error:
        return error


async def outcome_async(babbler: Babbler, operation: str) -> Any:
    client = connect_async(babbler.url)
    try:
        return await OPERATIONS[operation](await AsyncRedisStreamsQueue.create(client, CONFIG))
    finally:
        await client.aclose()


@pytest.mark.parametrize("way", ["sync", "async"])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_what_is_no_reply_is_a_queue_error(babbler: Babbler, operation: str, way: str) -> None:
    for answer in NO_REPLIES:
        error = outcome(babbler, operation, answer, way)
        assert isinstance(error, QueueError), (answer[:40], error)
        assert str(error).isprintable()
        assert operation.removesuffix("_many") in str(error)


# For these, an answer of that shape has a meaning: nothing new, not pending, an id.
SAID = {
    "enqueue": [b"+OK\r\n"],
    "enqueue_many": [b"+OK\r\n"],
    "read": [b"$-1\r\n", b"*-1\r\n", b"*0\r\n", b"*1\r\n*4\r\n*0\r\n*0\r\n*0\r\n*0\r\n"],
    "ack": [b":5\r\n"],
    "ack_if_owner": [b"*1\r\n:1\r\n"],
    "claim_stale": [b"*0\r\n"],
    "backlog_stats": [],
}


@pytest.mark.parametrize("way", ["sync", "async"])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_reply_to_something_else_is_a_queue_error(babbler: Babbler, operation: str, way: str) -> None:
    for answer in MISSHAPEN:
        error = outcome(babbler, operation, answer, way)
        if answer not in SAID[operation]:
            assert isinstance(error, QueueError), (answer, error)


@pytest.mark.parametrize("way", ["sync", "async"])
def test_a_handshake_that_is_none_is_a_queue_error(way: str) -> None:
    with Babbler(rude=True) as babbler:
        for answer in NO_REPLIES + MISSHAPEN:
            babbler.answer = answer
            for url in (babbler.url, babbler.url.replace("protocol=2", "protocol=3")):
                with pytest.raises(QueueError):
                    created(url) if way == "sync" else asyncio.run(created_async(url))


def created(url: str) -> None:
    with connect(url) as client:
        RedisStreamsQueue(client, CONFIG)


async def created_async(url: str) -> None:
    client = connect_async(url)
    try:
        await AsyncRedisStreamsQueue.create(client, CONFIG)
    finally:
        await client.aclose()


def test_real_replies_with_bytes_changed_are_taken_or_refused(babbler: Babbler) -> None:
    """400 random mutations of real replies: each gives a value or one of conquiet's errors."""
    replies = {
        "read": b"*1\r\n*2\r\n$1\r\ns\r\n*2\r\n*2\r\n$3\r\n1-1\r\n*2\r\n$4\r\ndata\r\n$2\r\n{}\r\n*2\r\n$3\r\n1-2\r\n*0\r\n",
        "backlog_stats": b":1\r\n*4\r\n:1\r\n$3\r\n1-1\r\n$3\r\n1-1\r\n*1\r\n*2\r\n$1\r\nc\r\n$1\r\n1\r\n",
        "claim_stale": b"*1\r\n*4\r\n$3\r\n1-1\r\n$1\r\nc\r\n:100\r\n:1\r\n*1\r\n*2\r\n$3\r\n1-1\r\n*2\r\n$4\r\ndata\r\n$2\r\n{}\r\n",
        "ack_if_owner": b"*2\r\n:0\r\n$3\r\nbob\r\n",
    }
    chance, kinds = random.Random(8), set()
    for _ in range(100):
        for operation, reply in replies.items():
            changed = bytearray(reply)
            for _ in range(chance.randint(1, 3)):
                changed[chance.randrange(len(changed))] = chance.choice(b"0129-+:$*\r\nx\xff\0")
            kinds.add(type(outcome(babbler, operation, bytes(changed), "sync")).__name__)
    assert {"QueueAnswerError", "QueueOutcomeUnknownError"} < kinds


BLOCK = Block("1-1", "1-1", 1)
READINGS: dict[str, tuple[Callable[[str], Any], list[bytes]]] = {
    "a block": (lambda url: read_block(url), []),
    "the end": (lambda url: with_ledger(url, lambda ledger: ledger.last_id()), []),
    "settle": (lambda url: with_ledger(url, lambda ledger: ledger.settle(BLOCK)), [b":5\r\n"]),
    "claim": (lambda url: with_ledger(url, lambda ledger: ledger.claim(10)), [b"$-1\r\n", b"*-1\r\n"]),
    "open": (lambda url: with_ledger(url, lambda ledger: ledger.open()), [b"*0\r\n"]),
    "a plan": (
        lambda url: ConquietBatchReader({"url": url, "stream": "s"}, SOURCE_SCHEMA).partitions(),
        [b"*0\r\n"],
    ),
}


@pytest.mark.parametrize("reading", READINGS)
def test_the_spark_source_says_the_same(babbler: Babbler, reading: str) -> None:
    read, said = READINGS[reading]
    for answer in NO_REPLIES + MISSHAPEN:
        babbler.answer = answer
        if answer not in said:
            with pytest.raises(QueueError):
                read(babbler.url)


def read_block(url: str) -> Any:
    with BlockReader(url, "s", SOURCE_SCHEMA) as reader:
        return reader.read("-", "+")


def with_ledger(url: str, ask: Callable[[Ledger], Any]) -> Any:
    with connect(url) as client:
        return ask(Ledger(client, "s", "g", "c", "q"))


def test_a_reply_out_of_turn_costs_the_connection_not_the_next_command(redis_url: str) -> None:
    """Other code has used the client's connection and left an answer in it: the queue does not take it for its own."""
    with connect(redis_url) as client:
        queue = RedisStreamsQueue(client, CONFIG)
        pool: Any = client.connection_pool
        connection = route_to(client).only.get()
        connection.send_command("PING")  # its answer is not read
        pool.release(connection)
        # redis-py checks for such an answer before it hands a connection out, and may check too early.
        connection.can_read = lambda *_, **__: False
        with pytest.raises(QueueError, match="reply is not from Redis"):
            queue.backlog_stats()
        assert queue.enqueue({}).endswith("-0")
        assert queue.backlog_stats().length == 1
