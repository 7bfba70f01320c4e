"""run_recovery: the explicit way to handle what others left pending."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from conquiet.queue import GroupLostError, QueueConfigError
from tests.integration.queue.monitor import Monitor
from tests.integration.queue.recording import Recording
from tests.integration.queue.stream import Stream, wait_until
from tests.integration.queue.variants import STREAM


def left_pending(queues: Any, stream: Stream, amount: int, idle_ms: int = 70_000) -> list[str]:
    """Messages read by bob, who is gone."""
    ids = stream.add(*['{"left": true}'] * amount)
    messages = queues.queue("bob").read(1000, amount)
    stream.set_idle(messages, idle_ms)
    return ids


@pytest.mark.clause("C-15", "C-17")
def test_run_takes_new_messages_and_leaves_the_stale_ones(
    queues: Any, stream: Stream, monitor: Monitor
) -> None:
    stale = left_pending(queues, stream, 2)
    new = stream.add("{}", "{}")
    consumer = queues.consumer(claim_idle_ms=1)
    recording = Recording(commit=lambda: len(recording.events) == 6 and consumer.stop())
    monitor.commands()
    consumer.run(handler=recording.handle, db_factory=recording)
    assert [event for event in recording.events if "handler" in event] == [f"handler {i}" for i in new]
    assert set(monitor.names()) == {"XREADGROUP", "XACK"}
    assert stream.pending() == dict.fromkeys(stale, "bob")


@pytest.mark.clause("C-16", "C-17")
def test_recovery_handles_stale_messages_as_run_does_and_reads_no_new_ones(
    queues: Any, stream: Stream, monitor: Monitor
) -> None:
    stale = left_pending(queues, stream, 3)
    (fresh,) = left_pending(queues, stream, 1, idle_ms=50_000)
    consumer = queues.consumer(claim_idle_ms=60_000)
    recording = Recording(stream.raw, commit=lambda: len(recording.events) == 9 and consumer.stop())
    monitor.commands()
    consumer.run_recovery(handler=recording.handle, db_factory=recording, count=2, interval_ms=600_000)
    timeline = []
    for words in monitor.commands():
        if words[0] == "ECHO":
            timeline.append(words[1])
        elif words[0] != "EVAL" and not words[0].startswith("lua:"):  # the looks for new messages
            timeline.append(" ".join((words[0], *words[-3 if words[0] == "XPENDING" else -1 :])))
    handled = [[step, f"handler {i}", "commit", f"XACK {i}"] for i in stale for step in ("begin",)]
    assert timeline == [
        "XPENDING - + 2",
        f"XCLAIM {stale[0]}", *handled[0],
        f"XCLAIM {stale[1]}", *handled[1],
        f"XPENDING ({stale[1]} + 2",  # goes on after the last id
        f"XCLAIM {stale[2]}", *handled[2],
    ]  # fmt: skip
    assert stream.pending() == {fresh: "bob"}


@pytest.mark.clause("C-17")
def test_recovery_looks_again_after_its_interval(
    queues: Any, stream: Stream, monitor: Monitor, beside: ThreadPoolExecutor
) -> None:
    consumer = queues.consumer(claim_idle_ms=60_000)
    recording = Recording(commit=consumer.stop)
    monitor.commands()
    arguments = {"handler": recording.handle, "db_factory": recording, "interval_ms": 40}
    began = time.monotonic()
    running = beside.submit(consumer.run_recovery, **arguments)
    for _ in range(4):
        monitor.wait_for("XPENDING")
    assert time.monotonic() - began >= 3 * 0.04 * 0.95
    (entry_id,) = left_pending(queues, stream, 1)
    running.result(timeout=10)
    assert recording.events == ["begin", f"handler {entry_id}", "commit"]
    assert stream.pending() == {}


@pytest.mark.clause("C-17", "C-22")
def test_nothing_is_recovered_while_new_messages_wait(
    queues: Any,
    stream: Stream,
    monitor: Monitor,
    beside: ThreadPoolExecutor,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (stale,) = left_pending(queues, stream, 1)
    new = stream.add('{"new": true}', '{"new": true}')
    consumer, reader = queues.consumer(), queues.queue("carol")
    monitor.commands()
    recording = Recording(commit=consumer.stop)
    arguments = {"handler": recording.handle, "db_factory": recording, "interval_ms": 5}
    seen: list[str] = []

    def looked_often() -> bool:
        seen.extend(monitor.names())
        return seen.count("EVAL") > 15

    with caplog.at_level("INFO", "conquiet.queue"):
        running = beside.submit(consumer.run_recovery, **arguments)
        wait_until(looked_often, "a few looks")
        assert set(seen) == {"EVAL", "lua:XINFO", "lua:XRANGE"}
        assert recording.events == []
        assert stream.pending() == {stale: "bob"}
        assert [m.id for m in reader.read(1000, 10)] == new  # now nothing new is left
        running.result(timeout=10)
    assert recording.events == ["begin", f"handler {stale}", "commit"]
    about_passes = [
        r for r in caplog.records if r.name == "conquiet.queue" and "message_id" not in r.__dict__
    ]
    said = [(r.levelname, r.getMessage()) for r in about_passes]
    assert [level for level, _ in said] == ["INFO", "WARNING"]
    assert all("nothing is recovered while new messages wait to be read" in text for _, text in said)


@pytest.mark.clause("C-22")
def test_a_message_that_arrives_during_a_pass_ends_it(queues: Any, stream: Stream, monitor: Monitor) -> None:
    stale = left_pending(queues, stream, 4)
    consumer = queues.consumer()

    def handle(message: Any, tx: Any) -> None:
        handled.append(message.id)
        if len(handled) == 2:
            stream.add('{"new": true}')

    handled: list[str] = []
    recording = Recording()

    def look_twice() -> None:
        """The second pass gives way as well: then it has seen enough."""
        for _ in range(2):
            monitor.wait_for("XACK")
        for _ in range(2):
            while "last-delivered-id" not in monitor.wait_for("EVAL")[1]:
                pass
        consumer.stop()

    with ThreadPoolExecutor(1) as watching:
        monitor.commands()
        watched = watching.submit(look_twice)
        consumer.run_recovery(handler=handle, db_factory=recording, count=2, interval_ms=5)
        watched.result(timeout=10)
    assert handled == stale[:2]
    assert stream.pending() == dict.fromkeys(stale[2:], "bob")


@pytest.mark.clause("C-22")
def test_entries_deleted_before_they_were_read_are_not_waited_for(queues: Any, stream: Stream) -> None:
    """The stream's last generated id stays ahead of the group for ever."""
    (stale,) = left_pending(queues, stream, 1)
    stream.raw.xdel(STREAM, *stream.add("{}", "{}"))
    consumer = queues.consumer()
    recording = Recording(commit=consumer.stop)
    consumer.run_recovery(handler=recording.handle, db_factory=recording)
    assert recording.events == ["begin", f"handler {stale}", "commit"]


@pytest.mark.clause("C-22")
@pytest.mark.parametrize("how", ["stream", "group"])
def test_a_lost_group_ends_recovery(queues: Any, stream: Stream, how: str) -> None:
    consumer = queues.consumer()
    if how == "stream":
        stream.raw.delete(STREAM)
    else:
        stream.raw.xgroup_destroy(STREAM, stream.group)
    recording = Recording()
    with pytest.raises(GroupLostError):
        consumer.run_recovery(handler=recording.handle, db_factory=recording)


@pytest.mark.clause("C-16", "C-22")
def test_claim_stale_itself_takes_them_regardless(queues: Any, stream: Stream) -> None:
    (stale,) = left_pending(queues, stream, 1)
    stream.add("{}")
    assert [message.id for message in queues.consumer().claim_stale()] == [stale]


@pytest.mark.clause("C-06", "C-17")
def test_stop_wakes_recovery_from_its_interval(
    queues: Any, monitor: Monitor, beside: ThreadPoolExecutor
) -> None:
    consumer = queues.consumer()
    monitor.commands()
    recording = Recording()
    arguments = {"handler": recording.handle, "db_factory": recording, "interval_ms": 20_000}
    running = beside.submit(consumer.run_recovery, **arguments)
    monitor.wait_for("XPENDING")
    consumer.stop()
    running.result(timeout=5)
    assert monitor.commands() == []


@pytest.mark.clause("C-06", "C-08")
def test_stop_between_two_stale_messages_leaves_the_second_where_it_was(queues: Any, stream: Stream) -> None:
    first, second = left_pending(queues, stream, 2)
    consumer = queues.consumer()
    recording = Recording(commit=consumer.stop)
    consumer.run_recovery(handler=recording.handle, db_factory=recording)
    assert recording.events == ["begin", f"handler {first}", "commit"]
    assert stream.pending() == {second: "bob"}


@pytest.mark.clause("C-02", "C-17")
def test_a_failure_ends_recovery_and_leaves_the_rest_pending(queues: Any, stream: Stream) -> None:
    first, second = left_pending(queues, stream, 2)
    recording = Recording(handler=RuntimeError("once more"))
    with pytest.raises(RuntimeError, match="once more"):
        queues.consumer().run_recovery(handler=recording.handle, db_factory=recording)
    assert recording.events == ["begin", f"handler {first}", "rollback"]
    assert stream.pending() == {first: "alice", second: "bob"}


@pytest.mark.clause("S-19")
def test_entries_that_are_gone_are_one_log_line_and_few_commands(
    queues: Any, stream: Stream, monitor: Monitor, caplog: pytest.LogCaptureFixture
) -> None:
    ids = left_pending(queues, stream, 1_001)
    stream.raw.xtrim(STREAM, maxlen=1, approximate=False)
    consumer = queues.consumer()
    recording = Recording(commit=consumer.stop)
    monitor.commands()
    consumer.run_recovery(handler=recording.handle, db_factory=recording, count=10)
    assert recording.events == ["begin", f"handler {ids[-1]}", "commit"]
    assert len([name for name in monitor.names() if not name.startswith("lua:")]) < 20
    (said,) = [record.getMessage() for record in caplog.records if record.name == "conquiet.queue"]
    assert "1000 pending entries were trimmed or deleted before they were handled: " in said
    assert said.endswith(f"{ids[19]} and 980 more")
    assert stream.pending() == {}


@pytest.mark.clause("S-19")
def test_a_thousand_gone_entries_are_not_a_thousand_commands_for_claim_stale(
    queues: Any, stream: Stream, monitor: Monitor
) -> None:
    ids = left_pending(queues, stream, 1_000)
    stream.raw.xtrim(STREAM, maxlen=0, approximate=False)
    queue = queues.queue()
    monitor.commands()
    assert queue.claim_stale(60_000, 1_000).gone == ids
    assert [name for name in monitor.names() if not name.startswith("lua:")] == ["XPENDING", "XCLAIM", "EVAL"]


def test_what_another_rescuer_took_in_between_is_left_to_it(queues: Any, stream: Stream) -> None:
    first, second, third = left_pending(queues, stream, 3)
    consumer = queues.consumer()

    def take_the_second() -> None:
        if not taken:
            taken.append(stream.raw.xclaim(STREAM, stream.group, "carol", 0, [second], justid=True))

    taken: list[Any] = []
    recording = Recording(
        handler=take_the_second, commit=lambda: recording.events.count("commit") == 2 and consumer.stop()
    )
    consumer.run_recovery(handler=recording.handle, db_factory=recording)
    assert [event for event in recording.events if "handler" in event] == [
        f"handler {first}",
        f"handler {third}",
    ]
    assert stream.pending() == {second: "carol"}


def test_fresh_entries_ahead_are_passed_once_per_look_and_not_once_per_message(
    queues: Any, stream: Stream, monitor: Monitor
) -> None:
    """The server goes through the pending list from where it is told to: the pages together are one way through it."""
    left_pending(queues, stream, 300, idle_ms=0)
    stale = left_pending(queues, stream, 25)
    consumer = queues.consumer()
    recording = Recording(commit=lambda: recording.events.count("commit") == 25 and consumer.stop())
    monitor.commands()
    consumer.run_recovery(handler=recording.handle, db_factory=recording, count=10)
    looks = [words[-3] for words in monitor.commands("XPENDING")]
    assert looks == ["-", f"({stale[9]}", f"({stale[19]}"]


@pytest.mark.parametrize("argument", ["interval_ms", "count"])
@pytest.mark.parametrize("wrong", [0, -1, True, 1.5, "5", None], ids=repr)
def test_a_wrong_interval_or_count_is_refused_before_redis_is_called(
    queues: Any, monitor: Monitor, argument: str, wrong: Any
) -> None:
    consumer = queues.consumer()
    monitor.commands()
    recording = Recording()
    with pytest.raises(QueueConfigError, match=f"{argument} must be"):
        consumer.run_recovery(handler=recording.handle, db_factory=recording, **{argument: wrong})
    assert monitor.commands() == []
