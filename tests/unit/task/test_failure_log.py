"""Failures in the log: each one of a transaction once, without secrets, and whatever the logging handlers do."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from conquiet.task import ExceptionCategory, Transaction, TransactionException
from conquiet.task.mixins.policies import RetryPolicy
from tests.unit.task.both import Engine, failing, on_both, policy, transactions

pytestmark = pytest.mark.clause("E-29")

Lines = list[tuple[str, str, str]]


def lines(caplog: pytest.LogCaptureFixture) -> Lines:
    return [(record.name, record.levelname, record.getMessage()) for record in caplog.records]


@on_both
def test_a_final_failure_is_an_error_with_its_transaction_attempts_and_category(
    variant: str, caplog: pytest.LogCaptureFixture
) -> None:
    engine = Engine(variant)
    task = engine.task(failing(*[ValueError("no such colour")] * 2))
    engine.consume(task, transactions(1), policy(process=RetryPolicy(2)))
    what = "transaction tx-0: process raised ValueError: no such colour"
    assert lines(caplog) == [
        (
            "conquiet.engine",
            "WARNING",
            f"transaction tx-0: attempt 1 of 2 to process failed, the next is in 0 s: {what}",
        ),
        ("conquiet.engine", "ERROR", f"transaction tx-0: failed with SYSTEM at attempt 2: {what}"),
    ]


@on_both
def test_outside_a_loop_too(variant: str, caplog: pytest.LogCaptureFixture) -> None:
    engine = Engine(variant)
    refused = TransactionException("no funds", ExceptionCategory.BUSINESS)
    engine.live(engine.task(failing(refused)), Transaction("a"))
    assert lines(caplog) == [
        ("conquiet.engine", "ERROR", "transaction a: failed with BUSINESS at attempt 1: no funds")
    ]


@on_both
def test_an_exception_handler_that_fails_hides_nothing(
    variant: str, caplog: pytest.LogCaptureFixture
) -> None:
    engine = Engine(variant)
    task = engine.task(failing(ValueError("no such colour")), exception=failing(OSError("disk full")))
    engine.live(task, Transaction("a"))
    assert lines(caplog) == [
        (
            "conquiet.engine",
            "ERROR",
            "transaction a: failed with SYSTEM at attempt 1: transaction a: exception raised OSError: disk full "
            "(while the exception handler handled: SYSTEM: transaction a: process raised ValueError: no such colour)",
        )
    ]


@on_both
def test_the_text_is_redacted(variant: str, caplog: pytest.LogCaptureFixture) -> None:
    engine = Engine(variant)
    error = TransactionException("card 4111 at postgres://ada:secret@db/shop", ExceptionCategory.SYSTEM)
    task = engine.task(
        failing(error, error),
        exception=failing(error),
        redact=lambda self, text: text.replace("4111", "****"),
    )
    engine.consume(task, transactions(1), policy(process=RetryPolicy(2)))
    assert len(caplog.messages) == 2
    for message in caplog.messages:
        assert "card ****" in message
        assert "4111" not in message
        assert "secret" not in message


class Raising(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        raise ConnectionError("the log server is away")


@pytest.fixture
def broken_logging() -> Iterator[None]:
    handler = Raising()
    logging.getLogger("conquiet").addHandler(handler)
    yield
    logging.getLogger("conquiet").removeHandler(handler)


@on_both
@pytest.mark.usefixtures("broken_logging")
def test_a_logging_handler_that_raises_does_no_harm(variant: str, capfd: pytest.CaptureFixture[str]) -> None:
    engine = Engine(variant)
    task = engine.task(failing(*[ValueError("no such colour")] * 3))
    report = engine.consume(task, transactions(3), policy(process=RetryPolicy(2), batch=3))
    assert (report.succeeded, report.failed, report.unsettled) == (2, 1, 0)
    assert "failed with SYSTEM at attempt 2" in capfd.readouterr().err


FIELDS = ("transaction_id", "task", "attempt", "outcome")


def told(caplog: pytest.LogCaptureFixture) -> list[tuple[object, ...]]:
    return [
        (record.levelname, *(record.__dict__[name] for name in FIELDS))
        for record in caplog.records
        if hasattr(record, "outcome")
    ]


@on_both
def test_every_transaction_is_told_with_fields(variant: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "conquiet.engine")
    engine = Engine(variant)
    task = engine.task(failing(*[ValueError("no such colour")] * 3), name="Paint")
    engine.consume(task, transactions(2), policy(process=RetryPolicy(2)))
    assert told(caplog) == [
        ("DEBUG", "tx-0", "Paint", 0, "started"),
        ("WARNING", "tx-0", "Paint", 1, "will be retried"),
        ("ERROR", "tx-0", "Paint", 2, "failed"),
        ("DEBUG", "tx-1", "Paint", 0, "started"),
        ("WARNING", "tx-1", "Paint", 1, "will be retried"),
        ("INFO", "tx-1", "Paint", 2, "succeeded"),
    ]
    durations = [record.__dict__["duration"] for record in caplog.records]
    assert all(value is None if number % 3 == 0 else value >= 0 for number, value in enumerate(durations))
    for record in (caplog.records[1], caplog.records[2], caplog.records[4]):
        assert record.__dict__["error_type"] == "ValueError"
        assert record.exc_info is None


@on_both
def test_the_traceback_is_that_of_the_task(variant: str, caplog: pytest.LogCaptureFixture) -> None:
    engine = Engine(variant)

    def paint(transaction: Transaction) -> None:
        raise ValueError("no such colour")

    engine.live(engine.task(paint), Transaction("a"))
    text = caplog.records[0].exc_text or ""
    assert text == caplog.records[0].__dict__["traceback"]
    assert "in paint\n" in text
    assert text.endswith("ValueError: no such colour")
    assert "transaction_run.py" not in text


@on_both
def test_what_a_task_raises_itself_is_shown_with_its_cause(
    variant: str, caplog: pytest.LogCaptureFixture
) -> None:
    engine = Engine(variant)

    def paint(transaction: Transaction) -> None:
        try:
            raise ValueError("no such colour")
        except ValueError as error:
            raise TransactionException("ask for another", ExceptionCategory.BUSINESS) from error

    engine.live(engine.task(paint), Transaction("a"))
    text = caplog.records[0].exc_text or ""
    assert "ValueError: no such colour\n" in text
    assert text.endswith("TransactionException: ask for another")


@on_both
def test_a_traceback_has_no_secrets_either(variant: str, caplog: pytest.LogCaptureFixture) -> None:
    engine = Engine(variant)

    def paint(transaction: Transaction) -> None:
        raise ValueError("card 4111 at postgres://ada:hunter2@db/shop")

    task = engine.task(paint, redact=lambda self, text: text.replace("4111", "****"))
    engine.consume(task, transactions(1), policy(process=RetryPolicy(2)))
    assert len(caplog.records) == 2
    for record in caplog.records:
        assert "postgres://ada:***@db/shop" in (record.exc_text or "")
        assert "hunter2" not in repr(record.__dict__)
        assert "4111" not in repr(record.__dict__)
