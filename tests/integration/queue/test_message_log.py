"""What a consumer logs of each message: a line for people, fields for machines, and no secrets in either."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from tests.integration.queue.recording import Recording
from tests.integration.queue.stream import Stream
from tests.integration.queue.variants import GROUP, STREAM

FIELDS = ("message_id", "queue", "group", "worker", "outcome")


def about_messages(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if hasattr(record, "outcome")]


def told(caplog: pytest.LogCaptureFixture) -> list[tuple[Any, ...]]:
    return [
        (record.levelname, *(record.__dict__[name] for name in FIELDS)) for record in about_messages(caplog)
    ]


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.DEBUG, "conquiet.queue")
    return caplog


def test_what_is_handled_is_told_with_its_duration(
    queues: Any, stream: Stream, log: pytest.LogCaptureFixture
) -> None:
    (entry_id,) = stream.add('{"card": "hunter2"}')
    consumer = queues.consumer("ann")
    recording = Recording(commit=lambda: consumer.stop())
    consumer.run(handler=recording.handle, db_factory=recording)
    who = (entry_id, STREAM, GROUP, "ann")
    assert told(log) == [("DEBUG", *who, "started"), ("INFO", *who, "succeeded")]
    started, succeeded = about_messages(log)
    assert started.__dict__["duration"] is None
    assert succeeded.__dict__["duration"] > 0
    assert succeeded.__dict__["task"].endswith("handle")
    assert "hunter2" not in repr([record.__dict__ for record in log.records])


def test_what_fails_is_told_with_its_traceback_and_raised(
    queues: Any, stream: Stream, log: pytest.LogCaptureFixture
) -> None:
    (entry_id,) = stream.add("{}")
    error = LookupError("no row at postgresql://app:hunter2@db/shop")
    recording = Recording(handler=error)
    with pytest.raises(LookupError) as caught:
        queues.consumer("ann").run(handler=recording.handle, db_factory=recording)
    assert caught.value is error
    assert error.args == ("no row at postgresql://app:hunter2@db/shop",)
    assert [(level, outcome) for level, *_, outcome in told(log)] == [
        ("DEBUG", "started"),
        ("WARNING", "left pending"),
    ]
    record = about_messages(log)[1]
    assert record.exc_info is None
    assert record.__dict__["error_type"] == "LookupError"
    text = record.exc_text or ""
    assert text == record.__dict__["traceback"]
    assert "in handle\n" in text
    assert text.endswith("LookupError: no row at postgresql://app:***@db/shop")
    assert "hunter2" not in repr(record.__dict__)
    assert stream.pending() == {entry_id: "ann"}


def test_recovered_messages_are_told_too(queues: Any, stream: Stream, log: pytest.LogCaptureFixture) -> None:
    (entry_id,) = stream.add("{}")
    stream.set_idle(queues.queue("bob").read(1000, 1), 70_000)
    consumer = queues.consumer("ann", claim_idle_ms=60_000)
    recording = Recording(commit=lambda: consumer.stop())
    consumer.run_recovery(handler=recording.handle, db_factory=recording, interval_ms=600_000)
    assert [(level, message, outcome) for level, message, *_, outcome in told(log)] == [
        ("DEBUG", entry_id, "started"),
        ("INFO", entry_id, "succeeded"),
    ]


class Broken(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        raise RuntimeError("no space left")


def test_a_logging_handler_that_raises_does_no_harm(
    queues: Any, stream: Stream, log: pytest.LogCaptureFixture
) -> None:
    stream.add("{}", "{}")
    consumer = queues.consumer("ann")
    recording = Recording(commit=lambda: len(recording.events) == 6 and consumer.stop())
    broken = Broken()
    logging.getLogger("conquiet.queue").addHandler(broken)
    try:
        consumer.run(handler=recording.handle, db_factory=recording)
    finally:
        logging.getLogger("conquiet.queue").removeHandler(broken)
    assert stream.pending() == {}


def test_an_interrupt_is_no_failure_of_the_message(
    queues: Any, stream: Stream, log: pytest.LogCaptureFixture
) -> None:
    stream.add("{}")
    recording = Recording(handler=KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        queues.consumer("ann").run(handler=recording.handle, db_factory=recording)
    assert [(level, outcome) for level, *_, outcome in told(log)] == [
        ("DEBUG", "started"),
        ("INFO", "interrupted"),
    ]
