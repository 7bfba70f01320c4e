"""run_recovery: the explicit way to handle what others left pending."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from conquiet.queue import QueueConfigError
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
    stream.add('{"new": true}')
    consumer = queues.consumer(claim_idle_ms=60_000)
    recording = Recording(stream.raw, commit=lambda: len(recording.events) == 9 and consumer.stop())
    monitor.commands()
    consumer.run_recovery(handler=recording.handle, db_factory=recording, count=2, interval_ms=600_000)
    timeline = [words[1] if words[0] == "ECHO" else f"{words[0]} {words[-1]}" for words in monitor.commands()]
    handled = [[step, f"handler {i}", "commit", f"XACK {i}"] for i in stale for step in ("begin",)]
    assert timeline == [
        "XPENDING 1", f"XCLAIM {stale[0]}", *handled[0],
        "XPENDING 1", f"XCLAIM {stale[1]}", *handled[1],
        "XPENDING 1", f"XCLAIM {stale[2]}", *handled[2],
    ]  # fmt: skip
    assert stream.pending() == {fresh: "bob"}
    assert stream.raw.xinfo_groups(STREAM)[0]["lag"] == 1


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


@pytest.mark.clause("C-17")
def test_an_idle_recovery_leaves_new_messages_alone(
    queues: Any, stream: Stream, monitor: Monitor, beside: ThreadPoolExecutor
) -> None:
    consumer = queues.consumer()
    stream.add('{"new": true}')
    monitor.commands()
    recording = Recording()
    arguments = {"handler": recording.handle, "db_factory": recording, "interval_ms": 10}
    running = beside.submit(consumer.run_recovery, **arguments)
    seen: list[str] = []

    def looked_often() -> bool:
        seen.extend(monitor.names())
        return seen.count("XPENDING") > 3

    wait_until(looked_often, "a few looks")
    consumer.stop()
    running.result(timeout=10)
    assert set(seen) == {"XPENDING"}
    assert recording.events == []
    assert stream.pending() == {}


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
def test_entries_that_are_gone_do_not_end_recovery(queues: Any, stream: Stream) -> None:
    gone, kept = left_pending(queues, stream, 2)
    stream.raw.xdel(STREAM, gone)
    consumer = queues.consumer()
    recording = Recording(commit=consumer.stop)
    consumer.run_recovery(handler=recording.handle, db_factory=recording)
    assert recording.events == ["begin", f"handler {kept}", "commit"]


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
