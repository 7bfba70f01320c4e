"""The commands that the queue sends over its whole life, and those that it never sends."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from conquiet.queue import LeaseLostError, MalformedEntryError
from tests.integration.queue.monitor import Monitor
from tests.integration.queue.recording import Recording
from tests.integration.queue.stream import Stream
from tests.integration.queue.variants import GROUP, STREAM

# Not among them: XTRIM, XDEL, XAUTOCLAIM, XGROUP DELCONSUMER.
SENT = {"XADD", "XREADGROUP", "XACK", "XPENDING", "XCLAIM", "XRANGE", "XLEN", "XINFO", "EVAL"}


@pytest.mark.clause("S-25", "C-20")
def test_a_whole_life_needs_these_commands_and_no_other_key(
    queues: Any, stream: Stream, monitor: Monitor, raw: redis.Redis
) -> None:
    monitor.ignore(raw)
    alice, bob, consumer = (
        queues.queue("alice"),
        queues.queue("bob"),
        queues.consumer("carol", claim_idle_ms=1),
    )
    assert {words[:2] for words in monitor.commands()} == {("XGROUP", "CREATE")}
    alice.enqueue({"n": 1})
    alice.enqueue_many({"n": number} for number in range(2, 40))
    held = alice.read(1000, 20)
    alice.ack(held[0])
    alice.ack_many(held[1:3])
    alice.ack_if_owner(held[3])
    bob.claim_stale(0, 5)
    with pytest.raises(LeaseLostError):
        alice.ack_if_owner(held[4])
    raw.xdel(STREAM, held[5].id, held[19].id)
    bob.ack_many(bob.claim_stale(0, 100))
    consumer.backlog_stats()
    raw.xadd(STREAM, {"wrong": 1})
    recording = Recording()
    with pytest.raises(MalformedEntryError) as caught:
        consumer.run(handler=recording.handle, db_factory=recording)
    consumer.ack(caught.value.entries[0])
    assert consumer.next(10) is None
    consumer.stop()
    sent = monitor.commands()
    assert {words[0].removeprefix("lua:") for words in sent} == SENT
    assert all(STREAM in words for words in sent)
    assert raw.keys() == [STREAM]  # no dead-letter, priority, lock or metadata key
    assert recording.events.count("commit") == 19
    assert stream.pending() == {}


@pytest.mark.clause("S-25")
def test_nothing_is_trimmed_deleted_or_cleaned_up(queues: Any, stream: Stream) -> None:
    """Consumers come and go, entries are acknowledged: everything stays in Redis until its owner removes it."""
    for name in ("alice", "bob"):
        queue = queues.queue(name)
        queue.enqueue_many([{}] * 3)
        queue.ack_many(queue.read(1000, 3))
    assert len(stream.entries()) == 6
    consumers = stream.raw.xinfo_consumers(STREAM, GROUP)
    assert [consumer["name"] for consumer in consumers] == ["alice", "bob"]


@pytest.mark.clause("C-15", "C-20")
@pytest.mark.parametrize("how", ["next", "iter_messages", "run"])
def test_consuming_never_looks_for_stale_messages(
    queues: Any, stream: Stream, monitor: Monitor, how: str
) -> None:
    """Stale messages exist, new ones come and run out: still only reads and acks."""
    left = stream.add("{}", "{}", "{}")
    abandoned = queues.queue("bob").read(1000, 3)
    stream.set_idle(abandoned, 600_000)
    stream.add("{}", "{}")
    consumer = queues.consumer(block_ms=20, claim_idle_ms=1)
    monitor.commands()
    if how == "next":
        for _ in range(4):
            consumer.next()
    elif how == "iter_messages":
        messages = consumer.iter_messages()
        for _ in range(2):
            consumer.ack(next(messages))
        consumer.stop()
    else:
        recording = Recording(commit=lambda: len(recording.events) == 6 and consumer.stop())
        consumer.run(handler=recording.handle, db_factory=recording)
    assert set(monitor.names()) <= {"XREADGROUP", "XACK"}
    assert {entry_id: stream.pending()[entry_id] for entry_id in left} == dict.fromkeys(left, "bob")
