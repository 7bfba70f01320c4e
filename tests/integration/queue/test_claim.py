"""claim_stale: unacknowledged messages go to another consumer, by Redis's own measure of idle time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from conquiet.queue import ClaimedMessages, MalformedEntryError, QueueConfigError
from tests.integration.queue.gate import Gate
from tests.integration.queue.monitor import Monitor
from tests.integration.queue.stream import Stream
from tests.integration.queue.variants import GROUP, STREAM


def pending_messages(queues: Any, amount: int) -> list[Any]:
    """Messages read by alice, who never acknowledges."""
    queue = queues.queue("alice")
    queue.enqueue_many({"n": number} for number in range(amount))
    messages = queue.read(100, amount)
    assert len(messages) == amount
    return messages


@pytest.mark.clause("S-17")
def test_it_is_a_bounded_xpending_and_an_xclaim(queues: Any, stream: Stream, monitor: Monitor) -> None:
    messages = pending_messages(queues, 3)
    stream.set_idle(messages, 60_000)
    bob = queues.queue("bob")
    monitor.commands()
    claimed: Any = bob.claim_stale(30_000, 2)
    assert [" ".join(words) for words in monitor.commands()] == [
        f"XPENDING {STREAM} {GROUP} IDLE 30000 - + 2",
        f"XCLAIM {STREAM} {GROUP} bob 30000 {messages[0].id} {messages[1].id}",
    ]
    assert type(claimed) is ClaimedMessages
    assert claimed.gone == []
    assert claimed == messages[:2]
    assert list(stream.pending().values()) == ["bob", "bob", "alice"]


@pytest.mark.clause("S-17")
def test_with_nothing_stale_there_is_nothing_to_claim(queues: Any, monitor: Monitor) -> None:
    bob = queues.queue("bob")
    monitor.commands()
    claimed = bob.claim_stale(1000)
    assert (claimed, claimed.gone) == ([], [])
    assert monitor.commands() == [("XPENDING", STREAM, GROUP, "IDLE", "1000", "-", "+", "10")]


@pytest.mark.clause("S-17")
def test_count_bounds_it_and_is_ten_by_default(queues: Any, stream: Stream) -> None:
    stream.set_idle(pending_messages(queues, 25), 60_000)
    bob = queues.queue("bob")
    assert [len(bob.claim_stale(30_000)), len(bob.claim_stale(30_000, 4)), len(bob.claim_stale(30_000, 99))] == [
        10, 4, 11,
    ]  # fmt: skip


@pytest.mark.clause("S-18")
def test_what_is_not_idle_for_long_enough_is_left_alone(queues: Any, stream: Stream) -> None:
    fresh, old, older = pending_messages(queues, 3)
    stream.set_idle([old], 40_000)
    stream.set_idle([older], 90_000)
    bob = queues.queue("bob")
    assert bob.claim_stale(120_000) == []
    assert bob.claim_stale(60_000) == [older]
    assert bob.claim_stale(30_000) == [old]  # the one just claimed is fresh again
    assert bob.claim_stale(30_000) == []
    assert stream.pending() == {fresh.id: "alice", old.id: "bob", older.id: "bob"}


@pytest.mark.clause("S-18")
def test_a_page_full_of_fresh_entries_does_not_hide_the_stale_ones_behind_it(
    queues: Any, stream: Stream
) -> None:
    messages = pending_messages(queues, 120)
    stale = [messages[70], messages[119]]
    stream.set_idle(stale, 60_000)
    assert queues.queue("bob").claim_stale(30_000, 2) == stale


@pytest.mark.clause("S-12", "S-18")
@pytest.mark.parametrize("wrong", [-1, True, 1.0, "5"], ids=repr)
def test_a_wrong_idle_time_is_refused_before_redis_is_called(
    queues: Any, monitor: Monitor, wrong: Any
) -> None:
    queue, consumer = queues.queue(), queues.consumer()
    monitor.commands()
    for claim in (queue.claim_stale, consumer.claim_stale):
        with pytest.raises(QueueConfigError, match="min_idle_ms must be"):
            claim(wrong)
    with pytest.raises(QueueConfigError, match="min_idle_ms must be"):
        queue.claim_stale(None)
    assert monitor.commands() == []


def test_with_zero_everything_pending_is_stale(queues: Any) -> None:
    messages = pending_messages(queues, 3)
    assert queues.queue("bob").claim_stale(0) == messages


@pytest.mark.clause("S-19")
@pytest.mark.parametrize("loss", ["deleted", "trimmed", "all deleted"])
def test_entries_that_are_gone_are_told_and_the_rest_is_claimed(
    queues: Any, stream: Stream, loss: str
) -> None:
    messages = pending_messages(queues, 6)
    stream.set_idle(messages, 60_000)
    if loss == "trimmed":
        stream.raw.xtrim(STREAM, minid=messages[2].id, approximate=False)
        lost = messages[:2]
    else:
        lost = messages if loss == "all deleted" else [messages[1], messages[4]]
        stream.raw.xdel(STREAM, *(m.id for m in lost))
    bob = queues.queue("bob")
    claimed = bob.claim_stale(30_000, 10)
    rest = [m for m in messages if m not in lost]
    assert claimed == rest
    assert claimed.gone == [m.id for m in lost]
    assert bob.ack_many(claimed) == len(rest)
    again = bob.claim_stale(0, 10)
    assert again == []
    assert set(again.gone) <= set(claimed.gone)  # some servers keep them pending, some drop them


@pytest.mark.clause("S-19")
def test_entries_that_are_gone_do_not_break_read(queues: Any, stream: Stream) -> None:
    queue = queues.queue()
    ids = queue.enqueue_many({"n": number} for number in range(4))
    queue.read(100)
    stream.raw.xdel(STREAM, ids[0], ids[2])
    assert [m.id for m in queue.read(100, 10)] == [ids[1], ids[3]]


@pytest.mark.clause("S-07", "S-19")
def test_malformed_gone_and_good_in_one_claim(queues: Any, stream: Stream) -> None:
    alice = queues.queue("alice")
    good, bad, gone = (*stream.add('{"n": 1}', "[]"), *stream.add('{"n": 2}'))
    with pytest.raises(MalformedEntryError):
        alice.read(100, 10)
    stream.raw.xdel(STREAM, gone)
    with pytest.raises(MalformedEntryError) as caught:
        queues.queue("bob").claim_stale(0)
    assert [m.id for m in caught.value.messages] == [good]
    assert isinstance(caught.value.messages, ClaimedMessages)
    assert caught.value.messages.gone == [gone]
    assert [e.id for e in caught.value.entries] == [bad]


@pytest.mark.clause("S-18", "S-20")
def test_of_two_who_saw_the_same_stale_entry_one_gets_it(queues: Any, stream: Stream, gate: Gate) -> None:
    """bob claims between carol's XPENDING and her XCLAIM: the entry is not idle any more."""
    (message,) = pending_messages(queues, 1)
    stream.set_idle([message], 60_000)
    bob = queues.queue("bob")
    won: list[Any] = []
    gate.before("XCLAIM", lambda: won.extend(bob.claim_stale(30_000)))
    carol = queues.queue("carol", client=queues.client(gate.url))
    lost = carol.claim_stale(30_000)
    assert won == [message]
    assert (lost, lost.gone) == ([], [])
    assert stream.pending() == {message.id: "bob"}


@pytest.mark.clause("S-20")
def test_claimers_side_by_side_never_hold_the_same_message(
    queues: Any, stream: Stream, beside: ThreadPoolExecutor
) -> None:
    messages = pending_messages(queues, 200)
    stream.set_idle(messages, 60_000)

    def claim_all(name: str) -> list[str]:
        queue = queues.queue(name)
        got: list[str] = []
        while claimed := queue.claim_stale(30_000, 9):
            got += [m.id for m in claimed]
        return got

    names = ["bob", "carol", "dave", "erin"]
    shares = dict(zip(names, beside.map(claim_all, names), strict=True))
    holders = {entry_id: name for name, share in shares.items() for entry_id in share}
    assert sum(map(len, shares.values())) == len(holders)
    assert stream.pending() == holders  # a claimer that ends early has lost a race to another


@pytest.mark.clause("S-20")
def test_a_message_that_is_held_is_nobody_elses(queues: Any, stream: Stream) -> None:
    messages = pending_messages(queues, 5)
    stream.set_idle(messages, 29_000)
    bob = queues.queue("bob")
    assert bob.read(20, 10) == []
    assert bob.claim_stale(30_000) == []
    assert set(stream.pending().values()) == {"alice"}
