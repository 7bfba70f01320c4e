"""ack, ack_many, and ack_if_owner, which checks the holder first."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from conquiet.queue import LeaseLostError, QueueConfigError, QueueError, QueueMessage
from tests.integration.queue.monitor import Monitor
from tests.integration.queue.stream import Stream
from tests.integration.queue.variants import GROUP, STREAM


@pytest.mark.clause("S-15")
def test_ack_is_one_xack_and_ends_the_pending(queues: Any, stream: Stream, monitor: Monitor) -> None:
    queue = queues.queue()
    queue.enqueue_many([{}, {}])
    first, second = queue.read(100, 2)
    monitor.commands()
    assert queue.ack(first) is None
    assert monitor.commands() == [("XACK", STREAM, GROUP, first.id)]
    assert stream.pending() == {second.id: "alice"}
    assert len(stream.entries()) == 2  # acknowledging deletes nothing


@pytest.mark.clause("S-16")
def test_acking_again_or_what_was_never_pending_is_allowed(queues: Any, stream: Stream) -> None:
    queue = queues.queue()
    queue.enqueue_many([{}, {}])
    (message,) = queue.read(100)
    for _ in range(3):
        queue.ack(message)
    not_delivered = QueueMessage(list(stream.entries())[1], {}, STREAM, GROUP)
    queue.ack(not_delivered)
    queue.ack(QueueMessage("1-1", {}, STREAM, GROUP))
    assert queue.ack_many([message, not_delivered]) == 0
    assert stream.pending() == {}
    assert [m.id for m in queue.read(100)] == [not_delivered.id]  # and it is still delivered


@pytest.mark.parametrize("wrong", [None, 5, QueueMessage("1-1", {}, STREAM, GROUP)])
def test_what_are_no_messages_is_refused(queues: Any, wrong: Any) -> None:
    with pytest.raises(QueueConfigError, match=f"takes several messages .*, not {type(wrong).__name__}"):
        queues.queue().ack_many(wrong)


def test_ack_many_is_one_call_and_counts_what_was_pending(
    queues: Any, stream: Stream, monitor: Monitor
) -> None:
    queue = queues.queue()
    queue.enqueue_many({"n": number} for number in range(5))
    messages = queue.read(100, 5)
    queue.ack(messages[0])
    monitor.commands()
    assert queue.ack_many(messages[:3]) == 2
    assert monitor.commands() == [("XACK", STREAM, GROUP, *(m.id for m in messages[:3]))]
    assert list(stream.pending()) == [m.id for m in messages[3:]]
    assert queue.ack_many(tuple(messages)) == 2
    monitor.commands()
    assert queue.ack_many([]) == 0
    assert monitor.commands() == []


def test_ack_many_of_thousands(queues: Any, stream: Stream, monitor: Monitor) -> None:
    queue = queues.queue()
    queue.enqueue_many({"n": number} for number in range(2300))
    messages = queue.read(100, 2300)
    monitor.commands()
    assert queue.ack_many(messages) == 2300
    assert [len(words) - 3 for words in monitor.commands()] == [1000, 1000, 300]
    assert stream.pending() == {}


@pytest.mark.parametrize("change", [{"stream": "others"}, {"group": "others"}], ids=str)
def test_a_message_of_another_stream_or_group_is_refused(
    queues: Any, stream: Stream, monitor: Monitor, change: dict[str, str]
) -> None:
    queue, consumer = queues.queue(), queues.consumer()
    queue.enqueue_many([{}, {}])
    own, other = queue.read(100, 2)
    other = replace(other, **change)
    monitor.commands()
    for ack in (queue.ack, queue.ack_if_owner, consumer.ack, lambda m: queue.ack_many([own, m])):
        with pytest.raises(QueueConfigError, match=f"message {other.id} belongs to stream"):
            ack(other)
    assert monitor.commands() == []
    assert len(stream.pending()) == 2


@pytest.mark.parametrize("thing", ["1-1", b"1-1", None, ("1-1", {})], ids=repr)
def test_only_what_was_delivered_can_be_acked(queues: Any, thing: Any) -> None:
    queue = queues.queue()
    for ack in (queue.ack, queue.ack_if_owner, queues.consumer().ack, lambda m: queue.ack_many([m])):
        with pytest.raises(
            QueueConfigError, match="only a QueueMessage or MalformedEntry can be acknowledged"
        ):
            ack(thing)


def test_the_owner_acks(queues: Any, stream: Stream, monitor: Monitor) -> None:
    queue = queues.queue()
    queue.enqueue_many([{}, {}])
    first, second = queue.read(100, 2)
    monitor.commands()
    assert queue.ack_if_owner(first) is None
    assert monitor.names()[0] == "EVAL"  # one atomic step, nothing before it
    assert stream.pending() == {second.id: "alice"}


def test_who_has_lost_the_entry_to_another_is_told_so_and_acks_nothing(queues: Any, stream: Stream) -> None:
    alice, bob = queues.queue("alice"), queues.queue("bob")
    alice.enqueue({})
    (held,) = alice.read(100)
    assert [m.id for m in bob.claim_stale(0)] == [held.id]
    with pytest.raises(LeaseLostError, match="is held by consumer 'bob' now") as caught:
        alice.ack_if_owner(held)
    assert isinstance(caught.value, QueueError)
    assert held.id in str(caught.value)
    assert stream.pending() == {held.id: "bob"}
    bob.ack_if_owner(held)
    assert stream.pending() == {}


def test_an_entry_that_is_not_pending_any_more_cannot_be_acked_as_owner(queues: Any) -> None:
    queue = queues.queue()
    queue.enqueue_many([{}, {}])
    (message,) = queue.read(100)
    queue.ack_if_owner(message)
    never_delivered = replace(message, id="1-1")
    for again in (message, never_delivered):
        with pytest.raises(LeaseLostError, match="is not pending any more"):
            queue.ack_if_owner(again)


def test_a_consumer_name_that_is_the_start_of_another_is_not_mistaken_for_it(queues: Any) -> None:
    queues.queue("alice").enqueue({})
    (held,) = queues.queue("alice").read(100)
    for similar in ("alic", "alice2", "ALICE", "alice "):
        with pytest.raises(LeaseLostError, match="'alice'"):
            queues.queue(similar).ack_if_owner(held)
