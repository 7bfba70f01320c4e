"""next, iter_messages, ack, claim_stale and backlog_stats of the consumer."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis

from conquiet.queue import BacklogStats, MalformedEntryError, QueueMessage
from tests.integration.queue.monitor import Monitor
from tests.integration.queue.stream import Stream
from tests.integration.queue.variants import GROUP, STREAM


@pytest.mark.clause("C-09")
def test_next_gives_one_message_or_none(queues: Any, stream: Stream) -> None:
    consumer = queues.consumer(block_ms=20)
    assert consumer.next() is None
    ids = stream.add('{"n": 1}', '{"n": 2}')
    assert consumer.next() == QueueMessage(ids[0], {"n": 1}, STREAM, GROUP)
    assert stream.pending() == {ids[0]: "alice"}
    assert consumer.next(50) == QueueMessage(ids[1], {"n": 2}, STREAM, GROUP)
    assert consumer.next(10) is None


@pytest.mark.clause("C-09")
def test_block_ms_is_the_configured_one_unless_given(queues: Any, monitor: Monitor) -> None:
    consumer = queues.consumer(block_ms=23)
    monitor.commands()
    for arguments in ((), (None,), (31,)):
        consumer.next(*arguments)
    consumer.next(block_ms=47)
    assert [words[4:8] for words in monitor.commands("XREADGROUP")] == [
        ("COUNT", "1", "BLOCK", block_ms) for block_ms in ("23", "23", "31", "47")
    ]


@pytest.mark.clause("C-11", "C-12")
def test_iter_messages_waits_for_messages_and_yields_until_stop(
    queues: Any, stream: Stream, beside: ThreadPoolExecutor
) -> None:
    consumer = queues.consumer(block_ms=50)
    got: list[int] = []

    def consume() -> None:
        for message in consumer.iter_messages():
            got.append(message.payload["n"])
            if message.payload["n"] == 3:
                consumer.stop()

    stream.add('{"n": 1}')
    consuming = beside.submit(consume)
    stream.wait_for_reader()  # the next read: it goes on waiting
    stream.add('{"n": 2}', '{"n": 3}', '{"n": 4}')
    consuming.result(timeout=10)
    assert got == [1, 2, 3]
    assert list(consumer.iter_messages()) == []
    assert len(stream.pending()) == 3  # none was acknowledged, the fourth was not read


@pytest.mark.clause("C-11")
def test_iter_messages_goes_on_over_empty_reads(queues: Any, stream: Stream, monitor: Monitor) -> None:
    consumer = queues.consumer(block_ms=20)
    monitor.commands()
    with ThreadPoolExecutor(1) as other:
        first = other.submit(next, consumer.iter_messages())
        for _ in range(3):
            monitor.wait_for("XREADGROUP")
        stream.add('{"n": 1}')
        assert first.result(timeout=10).payload == {"n": 1}


@pytest.mark.clause("C-11")
def test_iter_messages_raises_what_a_read_raises(queues: Any, raw: redis.Redis) -> None:
    consumer = queues.consumer(block_ms=1000)
    entry_id = raw.xadd(STREAM, {"wrong": 1})
    messages = consumer.iter_messages()
    with pytest.raises(MalformedEntryError, match=str(entry_id)):
        next(messages)
    assert next(messages, "over") == "over"  # as every generator that raised; a new one goes on
    raw.xadd(STREAM, {"data": "{}"})
    assert next(consumer.iter_messages()).payload == {}


@pytest.mark.clause("C-12")
def test_next_and_iter_messages_never_ack(queues: Any, stream: Stream, monitor: Monitor) -> None:
    consumer = queues.consumer(block_ms=20)
    ids = stream.add("{}", "{}", "{}")
    monitor.commands()
    consumer.next()
    messages = consumer.iter_messages()
    next(messages)
    next(messages)
    consumer.stop()
    assert list(messages) == []
    assert set(monitor.names()) == {"XREADGROUP"}
    assert stream.pending() == dict.fromkeys(ids, "alice")


@pytest.mark.clause("C-13")
def test_ack_works_after_stop(queues: Any, stream: Stream) -> None:
    consumer = queues.consumer()
    stream.add("{}")
    message = consumer.next()
    consumer.stop()
    consumer.ack(message)
    assert stream.pending() == {}


@pytest.mark.clause("C-16")
def test_claim_stale_takes_its_idle_time_from_the_configuration_unless_given(
    queues: Any, stream: Stream, monitor: Monitor
) -> None:
    ids = stream.add("{}", "{}", "{}")
    fresh, old, older = queues.queue("bob").read(1000, 3)
    stream.set_idle([old], 30_000)
    stream.set_idle([older], 50_000)
    consumer = queues.consumer(claim_idle_ms=40_000)
    monitor.commands()
    assert consumer.claim_stale() == [older]
    assert consumer.claim_stale(None) == []
    assert consumer.claim_stale(25_000) == [old]
    assert consumer.claim_stale(min_idle_ms=0, count=1) == [fresh]
    asked = [words[3:] for words in monitor.commands("XPENDING")]
    assert [(words[1], words[-1]) for words in asked] == [
        ("40000", "10"), ("40000", "10"), ("25000", "10"), ("0", "1"),
    ]  # fmt: skip
    assert stream.pending() == dict.fromkeys(ids, "alice")


@pytest.mark.clause("C-16")
def test_claim_idle_ms_is_a_minute_by_default(queues: Any, stream: Stream) -> None:
    stream.add("{}", "{}")
    below, above = queues.queue("bob").read(1000, 2)
    stream.set_idle([below], 55_000)
    stream.set_idle([above], 65_000)
    assert queues.consumer().claim_stale() == [above]


@pytest.mark.clause("C-18")
@pytest.mark.parametrize("maker", ["queue", "consumer"])
def test_backlog_stats_says_how_full_it_is(queues: Any, stream: Stream, maker: str) -> None:
    asked = getattr(queues, maker)()
    assert asked.backlog_stats() == BacklogStats(
        length=0,
        lag=0,
        pending=0,
        pending_by_consumer={},
        oldest_pending_id=None,
        oldest_pending_idle_ms=None,
    )
    ids = stream.add("{}", "{}", "{}", "{}", "{}")
    held = queues.queue("alice").read(1000, 2)
    queues.queue("bob").read(1000)
    stream.set_idle(held[:1], 60_000)
    stats = asked.backlog_stats()
    assert (stats.length, stats.lag, stats.pending) == (5, 2, 3)
    assert stats.pending_by_consumer == {"alice": 2, "bob": 1}
    assert stats.oldest_pending_id == ids[0]
    assert 60_000 <= stats.oldest_pending_idle_ms < 90_000
    stream.raw.xdel(STREAM, ids[3])
    assert asked.backlog_stats().lag in (None, 1)  # after a deletion Redis does not always know it


@pytest.mark.clause("C-18", "C-20")
def test_backlog_stats_only_looks(queues: Any, stream: Stream, monitor: Monitor) -> None:
    consumer = queues.consumer()
    stream.add(*["{}"] * 300)
    queues.queue("bob").read(1000, 250)

    def state() -> list[Any]:
        return [
            stream.raw.xinfo_groups(STREAM), stream.pending(), stream.deliveries(), stream.raw.xlen(STREAM),
            [consumer["name"] for consumer in stream.raw.xinfo_consumers(STREAM, GROUP)],
        ]  # fmt: skip

    before = state()
    monitor.commands()
    consumer.backlog_stats()
    sent = monitor.commands()
    assert {words[0] for words in sent} == {"XLEN", "XINFO", "XPENDING"}
    assert len(sent) <= 5  # bounded, however much is pending
    assert [words[3:] for words in sent if words[0] == "XPENDING"] == [(), ("-", "+", "1")]
    assert state() == before
