"""Malformed entries in run and run_recovery: raised, or passed to on_malformed instead of the handler."""

from __future__ import annotations

from typing import Any

import pytest

from conquiet.queue import MalformedEntry, MalformedEntryError
from tests.integration.queue.monitor import Monitor
from tests.integration.queue.recording import Recording
from tests.integration.queue.stream import Stream
from tests.integration.queue.variants import GROUP, STREAM


def deliver_to_bob(queues: Any, stream: Stream) -> None:
    """Deliver everything to bob, who is gone: it is stale now."""
    with pytest.raises(MalformedEntryError):
        queues.queue("bob").read(1000, 100)
    for entry_id in stream.pending():
        stream.raw.xclaim(STREAM, GROUP, "bob", 0, [entry_id], idle=70_000, justid=True)


@pytest.mark.clause("S-06", "C-11")
def test_run_raises_for_a_malformed_entry_and_leaves_it_pending(
    queues: Any, stream: Stream, monitor: Monitor
) -> None:
    consumer = queues.consumer()
    good, bad, _ = stream.add("{}", "[]", "{}")
    recording = Recording()
    monitor.commands()
    with pytest.raises(MalformedEntryError, match=bad):
        consumer.run(handler=recording.handle, db_factory=recording)
    assert recording.events == ["begin", f"handler {good}", "commit"]
    assert monitor.names() == ["XREADGROUP", "XACK", "XREADGROUP"]
    assert stream.pending() == {bad: "alice"}


@pytest.mark.clause("S-06")
def test_run_hands_it_to_on_malformed_in_the_handlers_place(
    queues: Any, stream: Stream, monitor: Monitor
) -> None:
    consumer = queues.consumer()
    ids = stream.add("{}", "[]", "{}")
    recording = Recording(stream.raw, commit=lambda: len(recording.events) == 9 and consumer.stop())
    seen: list[Any] = []

    def set_aside(entry: Any, tx: Any) -> None:
        seen.append(entry)
        recording.happens(f"aside {entry.id}")

    monitor.commands()
    consumer.run(handler=recording.handle, db_factory=recording, on_malformed=set_aside)
    timeline = [words[1] if words[0] == "ECHO" else words[0] for words in monitor.commands()]
    assert timeline == [
        "XREADGROUP", "begin", f"handler {ids[0]}", "commit", "XACK",
        "XREADGROUP", "begin", f"aside {ids[1]}", "commit", "XACK",
        "XREADGROUP", "begin", f"handler {ids[2]}", "commit", "XACK",
    ]  # fmt: skip
    reason = "the field 'data' is a JSON object was expected, not an array"
    assert seen == [MalformedEntry(ids[1], STREAM, GROUP, reason, 6)]
    assert stream.pending() == {}


@pytest.mark.clause("C-02", "S-06")
@pytest.mark.parametrize("method", ["run", "run_recovery"])
def test_an_on_malformed_that_fails_is_rolled_back_and_raised(
    queues: Any, stream: Stream, method: str
) -> None:
    (bad,) = stream.add("[]")
    consumer = queues.consumer()
    if method == "run_recovery":
        deliver_to_bob(queues, stream)
    recording = Recording(handler=RuntimeError("cannot set it aside"))
    with pytest.raises(RuntimeError, match="set it aside"):
        getattr(consumer, method)(
            handler=recording.handle, on_malformed=recording.handle, db_factory=recording
        )
    assert recording.events == ["begin", f"handler {bad}", "rollback"]
    assert stream.pending() == {bad: "alice"}


@pytest.mark.clause("S-07", "C-17")
def test_recovery_raises_for_a_malformed_entry_and_leaves_the_rest_alone(queues: Any, stream: Stream) -> None:
    consumer = queues.consumer()
    good, bad, better = stream.add("{}", "[]", "{}")
    deliver_to_bob(queues, stream)
    recording = Recording()
    with pytest.raises(MalformedEntryError, match=bad) as caught:
        consumer.run_recovery(handler=recording.handle, db_factory=recording)
    assert [entry.id for entry in caught.value.entries] == [bad]
    assert recording.events == ["begin", f"handler {good}", "commit"]
    assert stream.pending() == {bad: "alice", better: "bob"}


@pytest.mark.clause("S-07", "C-17")
def test_recovery_hands_them_to_on_malformed_in_their_turn(queues: Any, stream: Stream) -> None:
    consumer = queues.consumer()
    bad, good, worse = stream.add("[]", "{}", "null")
    deliver_to_bob(queues, stream)
    recording = Recording(commit=lambda: len(recording.events) == 9 and consumer.stop())
    consumer.run_recovery(
        handler=recording.handle,
        db_factory=recording,
        on_malformed=lambda entry, tx: recording.happens(f"aside {entry.id}"),
    )
    assert recording.events == [
        "begin", f"aside {bad}", "commit",
        "begin", f"handler {good}", "commit",
        "begin", f"aside {worse}", "commit",
    ]  # fmt: skip
    assert stream.pending() == {}


@pytest.mark.clause("C-06")
def test_stop_between_two_malformed_ones_leaves_the_second_pending(queues: Any, stream: Stream) -> None:
    consumer = queues.consumer()
    first, second = stream.add("[]", "null")
    deliver_to_bob(queues, stream)
    recording = Recording(commit=consumer.stop)
    consumer.run_recovery(handler=recording.handle, on_malformed=recording.handle, db_factory=recording)
    assert recording.events == ["begin", f"handler {first}", "commit"]
    assert stream.pending() == {second: "bob"}
