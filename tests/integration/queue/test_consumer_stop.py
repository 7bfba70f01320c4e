"""stop(): no new read; delivered messages stay delivered."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.integration.queue.monitor import Monitor
from tests.integration.queue.recording import Recording
from tests.integration.queue.stream import Stream


@pytest.mark.clause("C-06")
def test_after_stop_next_gives_none_without_calling_redis(
    queues: Any, stream: Stream, monitor: Monitor
) -> None:
    consumer = queues.consumer()
    stream.add("{}")
    monitor.commands()
    consumer.stop()
    consumer.stop()  # a second stop() does no harm
    recording = Recording()
    assert consumer.next() is None
    assert consumer.next(1000) is None
    assert list(consumer.iter_messages()) == []
    consumer.run(handler=recording.handle, db_factory=recording)
    consumer.run_recovery(handler=recording.handle, db_factory=recording)
    assert monitor.commands() == []
    assert recording.events == []


@pytest.mark.clause("C-06")
def test_stop_from_another_thread_ends_run_with_the_read_in_progress(
    queues: Any, stream: Stream, monitor: Monitor, beside: ThreadPoolExecutor
) -> None:
    consumer = queues.consumer(block_ms=200)
    running = beside.submit(consumer.run, handler=Recording().handle, db_factory=Recording())
    stream.wait_for_reader()
    monitor.commands()
    consumer.stop()
    running.result(timeout=10)
    assert monitor.commands("XREADGROUP") == []  # none is started after stop()


@pytest.mark.clause("C-06")
def test_stop_by_many_threads_at_once(queues: Any, stream: Stream, beside: ThreadPoolExecutor) -> None:
    consumer = queues.consumer(block_ms=50)
    running = beside.submit(consumer.run, handler=Recording().handle, db_factory=Recording())
    stream.wait_for_reader()
    for stopping in [beside.submit(consumer.stop) for _ in range(20)]:
        stopping.result(timeout=10)
    running.result(timeout=10)


@pytest.mark.clause("C-06", "C-08")
def test_stop_in_the_handler_finishes_this_message_and_no_other(
    queues: Any, stream: Stream, monitor: Monitor
) -> None:
    consumer = queues.consumer()
    ids = stream.add("{}", "{}")
    recording = Recording(handler=consumer.stop)
    monitor.commands()
    consumer.run(handler=recording.handle, db_factory=recording)
    assert recording.events == ["begin", f"handler {ids[0]}", "commit"]
    assert monitor.names() == ["XREADGROUP", "XACK"]
    assert stream.pending() == {}


@pytest.mark.clause("C-08")
def test_a_message_that_still_arrives_after_stop_is_returned_by_next(
    queues: Any, stream: Stream, beside: ThreadPoolExecutor
) -> None:
    consumer = queues.consumer()
    reading = beside.submit(consumer.next, 20_000)
    stream.wait_for_reader()
    consumer.stop()
    (entry_id,) = stream.add('{"n": 1}')
    message = reading.result(timeout=10)
    assert (message.id, message.payload) == (entry_id, {"n": 1})
    assert stream.pending() == {entry_id: "alice"}


@pytest.mark.clause("C-08")
@pytest.mark.parametrize(
    ("how", "data"), [("run", "{}"), ("run", "of the wrong format"), ("iter_messages", "{}")]
)
def test_a_message_that_still_arrives_after_stop_is_not_handed_on(
    queues: Any, stream: Stream, monitor: Monitor, beside: ThreadPoolExecutor, how: str, data: str
) -> None:
    consumer = queues.consumer(block_ms=20_000)
    recording = Recording()
    consume = {
        "run": lambda: consumer.run(
            handler=recording.handle, on_malformed=recording.handle, db_factory=recording
        ),
        "iter_messages": lambda: [recording.handle(message, None) for message in consumer.iter_messages()],
    }[how]
    consuming = beside.submit(consume)
    stream.wait_for_reader()
    consumer.stop()
    monitor.commands()
    (entry_id,) = stream.add(data)
    consuming.result(timeout=10)
    assert recording.events == []
    assert set(monitor.names()) <= {"XADD", "XREADGROUP"}  # no ack (a server may show the read when it ends)
    assert stream.pending() == {entry_id: "alice"}


@pytest.mark.clause("C-08")
def test_what_was_delivered_and_not_acked_stays_pending_after_stop(
    queues: Any, stream: Stream, monitor: Monitor
) -> None:
    consumer = queues.consumer()
    ids = stream.add("{}", "{}", "{}")
    consumer.next()
    messages = consumer.iter_messages()
    next(messages)
    monitor.commands()
    consumer.stop()
    assert list(messages) == []
    assert monitor.commands() == []  # no ack, no reclaim, no read
    assert stream.pending() == dict.fromkeys(ids[:2], "alice")
