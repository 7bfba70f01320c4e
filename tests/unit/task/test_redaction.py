"""Canary secrets, placed wherever they could get into a span, a log line, an error or a report."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from rich.pretty import pretty_repr

from conquiet.task import ConsumeReport, Transaction
from conquiet.task.exceptions import (
    EngineError,
    ExceptionCategory,
    FetchException,
    SettleException,
    TransactionException,
)
from conquiet.task.mixins.policies import RetryPolicy
from tests.unit.task.both import Batches, Engine, failing, on_both, policy
from tests.unit.task.canaries import CANARY, DSNS, FAILURES, every_dsn, every_failure, shown
from tests.unit.task.recorded import Recorded, attributes

pytestmark = pytest.mark.clause("E-25")


def secretive(count: int = 1) -> list[Transaction]:
    return [
        Transaction(
            f"tx-{number}",
            {"customer": "ann", "card": CANARY, "nested": {"token": CANARY}},
            {"dsn": DSNS[0], "lease": CANARY},
        )
        for number in range(count)
    ]


def account(report: ConsumeReport) -> str:
    return "\n".join(
        [repr(report), str(report), *map(repr, report.outcomes), *map(str, report.outcomes)]
        + [shown(outcome.exception) for outcome in report.outcomes if outcome.exception is not None]
        + [repr(outcome.transaction) for outcome in report.outcomes]
    )


@pytest.fixture
def everything_logged(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.DEBUG)
    return caplog


def logged(caplog: pytest.LogCaptureFixture) -> str:
    lines = []
    for record in caplog.records:
        lines.append(record.getMessage())
        lines += [f"{name}={value}" for name, value in record.__dict__.items() if name != "exc_info"]
        if record.exc_info and record.exc_info[1] is not None:
            lines.append(shown(record.exc_info[1]))
    return "\n".join(lines)


@on_both
@every_failure
@every_dsn
def test_a_failing_process_shows_no_credentials_anywhere(
    variant: str, kind: str, dsn: str, everything_logged: pytest.LogCaptureFixture
) -> None:
    spans, engine = Recorded(), Engine(variant)
    told: list[BaseException] = []

    def process(transaction: Transaction) -> None:
        raise FAILURES[kind](dsn)

    task = engine.task(
        process, exception=lambda tx, error: told.append(error), tracer_provider=spans.provider
    )
    report = engine.consume(task, secretive(2), policy(process=RetryPolicy(2), batch=2))
    assert report.failed == 2
    assert CANARY not in account(report)
    assert CANARY not in spans.text()
    assert CANARY not in "".join(map(shown, told))
    assert CANARY not in logged(everything_logged)
    expected = ExceptionCategory.BUSINESS if "business" in kind else None
    expected = ExceptionCategory.TIMEOUT if kind == "timeout" else expected or ExceptionCategory.SYSTEM
    assert {outcome.category for outcome in report.outcomes} == {expected}
    assert {error.transaction_id for error in told if isinstance(error, TransactionException)} == {
        "tx-0",
        "tx-1",
    }


@on_both
@every_failure
@pytest.mark.parametrize("step", ["success", "exception"])
def test_nor_does_a_failing_handler(
    variant: str, kind: str, step: str, everything_logged: pytest.LogCaptureFixture
) -> None:
    spans, engine = Recorded(), Engine(variant)

    def fail(*args: Any) -> None:
        raise FAILURES[kind](DSNS[1])

    handlers: dict[str, Any] = {step: fail}
    process = failing(ValueError(f"first {DSNS[0]}")) if step == "exception" else failing()
    task = engine.task(process, **handlers, tracer_provider=spans.provider)
    report = engine.consume(task, secretive(), policy())
    assert report.failed == 1
    assert CANARY not in account(report) + spans.text() + logged(everything_logged)


@on_both
@every_failure
def test_nor_does_a_connector_that_cannot_fetch(
    variant: str, kind: str, everything_logged: pytest.LogCaptureFixture
) -> None:
    spans, engine = Recorded(), Engine(variant)

    class Away(Batches):
        def fetch(self, size: int, **extra: Any) -> list[Transaction]:
            raise FAILURES[kind](DSNS[0])

    with pytest.raises(FetchException) as caught:
        engine.consume(engine.task(tracer_provider=spans.provider), Away(()), policy(fetch=RetryPolicy(2)))
    assert caught.value.report is not None
    assert CANARY not in shown(caught.value) + account(caught.value.report)
    assert CANARY not in spans.text() + logged(everything_logged)


@on_both
@every_failure
def test_nor_does_one_that_cannot_settle(
    variant: str, kind: str, everything_logged: pytest.LogCaptureFixture
) -> None:
    spans, engine = Recorded(), Engine(variant)

    class Deaf(Batches):
        def settle(self, outcomes: Any) -> None:
            raise FAILURES[kind](DSNS[0])

    with pytest.raises(SettleException) as caught:
        engine.consume(engine.task(tracer_provider=spans.provider), Deaf(secretive()))
    assert caught.value.report is not None
    assert caught.value.report.unsettled == 1
    assert CANARY not in shown(caught.value) + account(caught.value.report)
    assert CANARY not in spans.text() + logged(everything_logged)


@on_both
@every_failure
def test_nor_does_a_callback_that_fails(
    variant: str, kind: str, everything_logged: pytest.LogCaptureFixture
) -> None:
    spans, engine = Recorded(), Engine(variant)

    def on_outcome(outcome: Any) -> None:
        raise FAILURES[kind](DSNS[0])

    with pytest.raises(Exception) as caught:  # the callback's own error, of any class
        engine.consume(
            engine.task(tracer_provider=spans.provider), Batches(secretive()), on_outcome=on_outcome
        )
    assert CANARY not in shown(caught.value) + spans.text() + logged(everything_logged)


@on_both
@pytest.mark.parametrize(
    "result", [[{"id": CANARY}], None, CANARY, "too many"], ids=["dict", "none", "text", "many"]
)
def test_nor_does_a_contract_that_was_broken(
    variant: str, result: Any, everything_logged: pytest.LogCaptureFixture
) -> None:
    spans, engine = Recorded(), Engine(variant)

    class Broken(Batches):
        def fetch(self, size: int, **extra: Any) -> Any:
            return secretive(3) if result == "too many" else result

    with pytest.raises(EngineError) as caught:
        engine.consume(engine.task(tracer_provider=spans.provider), Broken(()))
    assert caught.value.report is not None
    assert CANARY not in shown(caught.value) + account(caught.value.report)
    assert CANARY not in spans.text() + logged(everything_logged)


@on_both
def test_success_shows_nothing_of_payload_metadata_or_result(
    variant: str, everything_logged: pytest.LogCaptureFixture
) -> None:
    spans, engine = Recorded(), Engine(variant)
    task = engine.task(lambda tx: {"receipt": CANARY}, tracer_provider=spans.provider)
    seen: list[Any] = []
    report = engine.consume(task, secretive(3), policy(batch=3), on_outcome=seen.append)
    assert len(seen) == 3
    assert CANARY not in repr(seen) + str(seen) + account(report) + spans.text() + logged(everything_logged)
    assert CANARY not in repr(secretive()) + str(secretive()[0])
    assert CANARY not in pretty_repr(seen) + pretty_repr(secretive()) + pretty_repr(report)
    assert "tx-0" in pretty_repr(seen)


@on_both
def test_a_payload_field_is_shown_only_if_it_is_on_the_list(variant: str) -> None:
    spans, engine = Recorded(), Engine(variant)
    payload = {
        "customer": "ann",
        "amount": 7,
        "rate": 0.5,
        "new": True,
        "huge": 2**70,
        "long": "x" * 5_000,
        "nested": {"token": CANARY},
        "list": [CANARY],
        "card": CANARY,
    }
    task = engine.task(
        tracer_provider=spans.provider,
        span_payload_fields=("customer", "amount", "rate", "new", "huge", "long", "nested", "list", "absent"),
    )
    engine.live(task, Transaction("a", payload, {"customer": CANARY}))
    assert CANARY not in spans.text()
    said = attributes(spans.one("start_processing"))
    assert {name: value for name, value in said.items() if "payload" in name} == {
        "conquiet.payload.customer": "ann",
        "conquiet.payload.amount": 7,
        "conquiet.payload.rate": 0.5,
        "conquiet.payload.new": True,
        "conquiet.payload.huge": str(2**70),  # more than 64 bits: an exporter cannot send it
        "conquiet.payload.long": "x" * 1_024,
    }
    for name in ("process", "handle_success"):
        assert not [key for key in attributes(spans.one(name)) if "payload" in key]


@on_both
@pytest.mark.parametrize("payload", [None, "text", [1], 7])
def test_a_payload_that_has_no_fields_has_none_to_show(variant: str, payload: Any) -> None:
    spans, engine = Recorded(), Engine(variant)
    task = engine.task(tracer_provider=spans.provider, span_payload_fields=["customer"])
    engine.live(task, Transaction("a", payload))
    assert "payload" not in spans.text()


@on_both
def test_one_string_is_no_list_of_names(variant: str) -> None:
    engine = Engine(variant)
    with pytest.raises(TypeError, match="span_payload_fields must be a list of names"):
        engine.live(engine.task(span_payload_fields="customer"), Transaction("a"))


@on_both
def test_a_redactor_of_the_users_sees_every_text_that_is_shown(variant: str) -> None:
    spans, engine = Recorded(), Engine(variant)
    task = engine.task(
        failing(ValueError(f"card {CANARY} refused")),
        tracer_provider=spans.provider,
        redact=lambda self, text: text.replace(CANARY, "[card]"),
    )
    outcome = engine.live(task, Transaction("a"))
    assert str(outcome.exception) == "transaction a: process raised ValueError: card [card] refused"
    assert CANARY not in spans.text()
    assert "card [card] refused" in attributes(spans.one("process"))["exception.message"]


@on_both
@pytest.mark.parametrize("gives", ["raises", "no text"])
def test_a_redactor_that_fails_shows_nothing_and_costs_nothing(variant: str, gives: str) -> None:
    def broken(self: Any, text: str) -> Any:
        if gives == "raises":
            raise LookupError(text)
        return None

    spans, engine = Recorded(), Engine(variant)
    task = engine.task(failing(ValueError(f"card {CANARY}")), tracer_provider=spans.provider, redact=broken)
    report = engine.consume(task, secretive(2))
    assert (report.failed, report.succeeded) == (1, 1)
    assert CANARY not in str(report.outcomes[0].exception) + spans.text()
    assert "(withheld: redact() " in str(report.outcomes[0].exception)
