"""SIGTERM acts as stop(), in real processes; SIGINT is left alone."""

from __future__ import annotations

import logging
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from conquiet.queue import QueueConsumer, connect
from tests.integration.queue.monitor import Monitor
from tests.integration.queue.processes import Program
from tests.integration.queue.recording import Recording
from tests.integration.queue.stream import Stream
from tests.integration.queue.variants import settings

LONG, SHORT = "60000", "200"


def stale_entry(stream: Stream, data: str) -> str:
    """An entry that run_recovery finds."""
    (entry_id,) = stream.add(data)
    stream.raw.xgroup_create(stream.key, stream.group, "0-0", mkstream=True)
    stream.raw.xreadgroup(stream.group, "gone", {stream.key: ">"})
    stream.raw.xclaim(stream.key, stream.group, "gone", 0, [entry_id], idle=60_000, justid=True)
    return entry_id


@pytest.mark.clause("C-06", "C-07", "C-08")
@pytest.mark.parametrize("how", ["run", "run_recovery"])
def test_the_message_begun_is_finished_and_no_other(
    queues: Any, redis_url: str, stream: Stream, how: str
) -> None:
    if how == "run":
        (begun,) = stream.add('{"wait": true}')
    else:
        begun = stale_entry(stream, '{"wait": true}')
    with Program("consume", queues.name, redis_url, how, LONG) as program:
        assert program.next_line() == f"handling {begun}"
        (other,) = stream.add("{}")
        program.send(signal.SIGTERM)
        program.go_on()
        assert program.end() == (0, ["commit", "handler restored"], "")
    assert stream.pending() == {}
    assert [m.id for m in queues.queue("next").read(1000, 10)] == [other]


@pytest.mark.clause("C-06", "C-07", "C-08")
def test_around_iter_messages_it_ends_the_iteration(variant: str, redis_url: str, stream: Stream) -> None:
    begun, _ = stream.add('{"wait": true}', "{}")
    with Program("consume", variant, redis_url, "iter_messages", LONG) as program:
        assert program.next_line() == f"handling {begun}"
        program.send(signal.SIGTERM)
        program.go_on()
        assert program.end() == (0, ["handler restored"], "")
    assert list(stream.pending()) == [begun]  # delivered, and never acknowledged by itself


@pytest.mark.clause("C-07")
@pytest.mark.parametrize("how", ["run", "iter_messages", "run_recovery"])
def test_an_idle_consumer_ends_with_its_read_or_its_pause(
    variant: str, redis_url: str, stream: Stream, monitor: Monitor, how: str
) -> None:
    """run_recovery waits a minute between two looks: it must be woken."""
    stream.add('{"n": 1}')
    with Program("consume", variant, redis_url, how, SHORT) as program:
        if how == "run_recovery":
            monitor.wait_for("EVAL")  # are there new messages? Yes: it pauses
        else:
            assert program.next_line().startswith("handling")
            stream.wait_for_reader()
        program.send(signal.SIGTERM)
        status, lines, error = program.end()
        assert (status, lines[-1], error) == (0, "handler restored", "")


@pytest.mark.clause("C-07")
def test_the_former_handler_is_restored_after_a_failure_too(
    variant: str, redis_url: str, stream: Stream
) -> None:
    (entry_id,) = stream.add('{"fail": true}')
    with Program("consume", variant, redis_url, "run", LONG) as program:
        code, lines, said = program.end()
    assert (code, lines) == (
        0, [f"handling {entry_id}", "rollback", "raised RuntimeError", "handler restored"],
    )  # fmt: skip
    assert said.startswith(f"message {entry_id} of stream ")
    assert said.endswith("in handle\n    raise RuntimeError\nRuntimeError\n")
    assert list(stream.pending()) == [entry_id]


@pytest.mark.clause("C-07", "C-21")
def test_sigint_is_left_alone(variant: str, redis_url: str, stream: Stream) -> None:
    (entry_id,) = stream.add('{"wait": true}')
    with Program("consume", variant, redis_url, "run", LONG) as program:
        assert program.next_line() == f"handling {entry_id}"
        program.send(signal.SIGINT)
        assert program.end() == (0, ["rollback", "raised KeyboardInterrupt", "handler restored"], "")
    assert list(stream.pending()) == [entry_id]


@pytest.mark.clause("C-07")
def test_in_the_main_thread_only_sigterm_is_changed_and_only_for_the_duration(
    redis_url: str, stream: Stream
) -> None:
    def handlers() -> dict[int, Any]:
        return {number: signal.getsignal(number) for number in signal.valid_signals()}

    before = handlers()
    changed: list[set[int]] = []

    def look() -> None:
        changed.append({number for number, handler in handlers().items() if handler is not before[number]})
        consumer.stop()

    stream.add("{}")
    with connect(redis_url) as client:
        consumer = QueueConsumer(client, settings())
        assert handlers() == before  # creating a consumer installs nothing
        recording = Recording(handler=look)
        consumer.run(handler=recording.handle, db_factory=recording)
        with consumer.stop_on_sigterm():
            look()
    assert changed == [{signal.SIGTERM}, {signal.SIGTERM}]
    assert handlers() == before


@pytest.mark.clause("C-07")
def test_outside_the_main_thread_nothing_is_installed_and_that_is_said(
    queues: Any, stream: Stream, beside: ThreadPoolExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    consumer = queues.consumer(block_ms=100)
    stream.add("{}")
    before = signal.getsignal(signal.SIGTERM)
    seen: list[Any] = []
    recording = Recording(handler=lambda: seen.append(signal.getsignal(signal.SIGTERM)), commit=consumer.stop)
    with caplog.at_level(logging.WARNING, "conquiet"):
        beside.submit(consumer.run, handler=recording.handle, db_factory=recording).result(timeout=10)
    assert seen == [before]
    (said,) = [record.getMessage() for record in caplog.records if record.name.startswith("conquiet")]
    assert "does not run in the main thread, so SIGTERM will not stop it" in said
