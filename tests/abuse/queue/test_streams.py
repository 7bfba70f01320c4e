"""The corpus against Redis streams: as raw entries written by others, as payload, and as name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from redis import Redis

from conquiet.connectors import StreamConnector
from conquiet.errors import LeaseLostError, MalformedEntryError, QueueConfigError, QueuePayloadError
from conquiet.payload import PayloadLimits
from conquiet.queue import (
    MalformedEntry,
    QueueConfig,
    QueueConsumer,
    QueueMessage,
    RedisStreamsQueue,
    connect,
)
from conquiet.queue.transactions import NoTransactions
from conquiet.task import StopReason, Transaction
from conquiet.task.mixins.consumer import ConsumerMixin
from conquiet.task.mixins.policies import BatchPolicy, ConcurrencyPolicy, ConsumerLoopPolicy, ConsumerPolicy
from tests.abuse.corpus import corpus, deep, huge

CONFIG = QueueConfig("orders", "billing", "alice", block_ms=50)
GOOD: dict[str, object] = {"good": True}


@pytest.fixture
def redis(redis_url: str) -> Iterator[Redis]:
    with connect(redis_url, socket_timeout=30.0) as client:
        yield client
        assert client.exists("pwned") == 0


def added(redis: Redis, *, larger: bool = False) -> tuple[list[str], dict[str, dict[str, object]]]:
    """Raw entries, most of them broken, between two good ones. Returns the ids of the broken, the payloads of the good.

    With `larger`, also 50 MB and 100,000 levels.
    """
    entries: list[tuple[dict[bytes, bytes], dict[str, object] | None]] = [({b"data": b'{"good":true}'}, GOOD)]
    for one in corpus():
        entries.append(({b"data": one.raw}, one.payload))
        entries.append(({one.raw: b"{}"}, None))
        entries.append(({b"data": b"{}", one.raw + b"x": one.raw}, None))
    if larger:
        entries.append(({b"data": huge()}, {"value": "x" * (50 * 1024 * 1024)}))
        entries.append(({b"data": deep()}, None))
    entries.append(({b"data": b'{"good":true}'}, GOOD))
    with redis.pipeline(transaction=False) as pipeline:
        for fields, _ in entries:
            pipeline.xadd(CONFIG.stream_key, fields)  # type: ignore[arg-type]
        ids = [found.decode() for found in pipeline.execute()]
    found = [(id, payload) for id, (_, payload) in zip(ids, entries, strict=True)]
    broken = [id for id, payload in found if payload is None]
    return broken, {id: payload for id, payload in found if payload is not None}


def pending(redis: Redis) -> int:
    found: Any = redis.xpending(CONFIG.stream_key, CONFIG.consumer_group)
    return int(found["pending"])


def test_a_consumer_survives_every_entry_and_says_what_is_wrong_with_it(redis: Redis) -> None:
    consumer = QueueConsumer(redis, CONFIG)
    broken, payloads = added(redis, larger=True)
    last, served, refused = max(payloads), {}, {}

    def handle(message: QueueMessage, _tx: object) -> None:
        served[message.id] = message.payload
        if message.id == last:
            consumer.stop()

    def set_aside(entry: MalformedEntry, _tx: object) -> None:
        refused[entry.id] = entry.reason

    consumer.run(handler=handle, db_factory=NoTransactions(), on_malformed=set_aside)
    assert served == payloads
    assert list(refused) == broken
    assert all(10 < len(reason) < 400 and reason.isprintable() for reason in refused.values())
    assert pending(redis) == 0
    assert redis.keys() == [b"orders"]


def test_a_batch_read_gives_the_good_ones_with_the_reasons_for_the_others(redis: Redis) -> None:
    queue = RedisStreamsQueue(redis, CONFIG)
    broken, payloads = added(redis)
    with pytest.raises(MalformedEntryError) as found:
        queue.read(1_000, 10_000)
    error = found.value
    assert {message.id: message.payload for message in error.messages} == payloads
    assert [entry.id for entry in error.entries] == broken
    assert len(str(error)) < 2_000
    assert str(error).isprintable()
    # A consumer that takes them over gets the same.
    with pytest.raises(MalformedEntryError) as again:
        queue.claim_stale(0, 10_000)
    assert again.value.entries == error.entries
    assert queue.ack_many([*error.messages, *error.entries]) == len(broken) + len(payloads)


class Task(ConsumerMixin):
    def __init__(self) -> None:
        self.served: dict[str, object] = {}

    def process_transaction(self, transaction: Transaction) -> None:
        self.served[transaction.id] = transaction.payload


def test_the_engine_survives_every_entry(redis: Redis) -> None:
    queue, task, refused = RedisStreamsQueue(redis, CONFIG), Task(), list[str]()
    broken, payloads = added(redis)
    connector = StreamConnector(queue, on_malformed=lambda entry: refused.append(entry.id))
    loop = ConsumerLoopPolicy(batch=BatchPolicy(size=100), concurrency=ConcurrencyPolicy(value=2))
    report = task.consume_transactions(connector, ConsumerPolicy(loop=loop))
    assert task.served == payloads
    assert refused == broken
    assert (report.stop_reason, report.succeeded) == (StopReason.DRAINED, len(payloads))
    assert pending(redis) == 0


def test_every_input_is_a_payload_that_comes_back_equal_or_is_refused(redis: Redis) -> None:
    queue = RedisStreamsQueue(redis, CONFIG)
    sent: list[dict[str, Any]] = [GOOD]
    for one in corpus():
        for shape in ({"value": one.text}, {one.text: 1}, {"a": [0, {"b": one.text}]}):
            if one.is_unicode:
                sent.append(shape)
                continue
            with pytest.raises(QueuePayloadError, match="surrogate"):
                queue.enqueue(shape)
            with pytest.raises(QueuePayloadError, match=r"payload number 1 .*surrogate"):
                queue.enqueue_many([GOOD, shape])
    with pytest.raises(QueuePayloadError, match="over the limit of 8388608"):
        queue.enqueue({"value": "x" * len(huge())})
    nested: dict[str, Any] = {}
    for _ in range(100_000):
        nested = {"value": nested}
    with pytest.raises(QueuePayloadError, match="deeper than 100 levels"):
        queue.enqueue(nested)
    sent.append(GOOD)
    half = len(sent) // 2
    for payload in sent[:half]:
        queue.enqueue(payload)
    queue.enqueue_many(sent[half:])
    messages = queue.read(1_000, 10_000)
    assert [message.payload for message in messages] == sent
    assert queue.ack_many(messages) == len(sent)
    assert redis.keys() == [b"orders"]


def test_with_a_higher_limit_50_megabytes_go_through(redis: Redis) -> None:
    queue = RedisStreamsQueue(redis, CONFIG, limits=PayloadLimits(max_bytes=64 * 1024 * 1024))
    payload = {"value": "x" * (50 * 1024 * 1024)}
    queue.enqueue(GOOD)
    queue.enqueue(payload)
    queue.enqueue(GOOD)
    messages = queue.read(1_000, 10)
    assert [message.payload for message in messages] == [GOOD, payload, GOOD]


def test_every_input_names_a_stream_a_group_and_a_consumer_or_is_refused(redis: Redis) -> None:
    names = []
    for one in corpus():
        name = one.text
        if not name or not one.is_unicode:
            for names_given in ((name, "g", "c"), ("s", name, "c"), ("s", "g", name)):
                with pytest.raises(QueueConfigError, match="non-empty|not valid Unicode"):
                    QueueConfig(*names_given)
            continue
        names.append(name.encode())
        queue = RedisStreamsQueue(redis, QueueConfig(name, name, name, block_ms=50))
        queue.enqueue({"name": name})
        (message,) = queue.read(1_000, 10)
        assert (message.payload, message.stream, message.group) == ({"name": name}, name, name)
        assert queue.backlog_stats().pending_by_consumer == {name: 1}
        queue.ack_if_owner(message)
        assert queue.backlog_stats().pending == 0
    assert sorted(redis.keys()) == sorted(names)


def test_a_strangers_consumer_whose_name_is_no_text_disturbs_nobody(redis: Redis) -> None:
    queue, stranger = RedisStreamsQueue(redis, CONFIG), b"\xff\x00\x1b[31m"
    queue.enqueue(GOOD)
    (message,) = queue.read(1_000, 1)
    redis.xclaim(CONFIG.stream_key, CONFIG.consumer_group, stranger, 0, [message.id])
    assert queue.backlog_stats().pending_by_consumer == {"\\xff\x00\x1b[31m": 1}
    with pytest.raises(LeaseLostError) as lost:
        queue.ack_if_owner(message)
    assert str(lost.value).isprintable()
    (taken,) = queue.claim_stale(0)
    queue.ack_if_owner(taken)
