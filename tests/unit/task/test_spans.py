"""The span tree of document 002 §12, one span per attempt, and what each span contains."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.trace import StatusCode

from conquiet.observe.failsafe import say_once
from conquiet.observe.spans import Spans
from conquiet.task import Transaction
from conquiet.task.exceptions import ExceptionCategory, FetchException, TransactionException
from conquiet.task.mixins.policies import RetryPolicy
from tests.unit.task.both import Batches, Engine, failing, nothing, on_both, policy, transactions
from tests.unit.task.recorded import Recorded, attributes

BUSINESS = ExceptionCategory.BUSINESS


@pytest.fixture
def spans() -> Recorded:
    return Recorded()


@pytest.mark.clause("E-23")
@on_both
def test_the_tree_of_a_loop_is_that_of_the_document(variant: str, spans: Recorded) -> None:
    engine = Engine(variant)
    task = engine.task(failing(None, ValueError("no")), tracer_provider=spans.provider)
    engine.consume(task, transactions(2), policy(batch=2))
    assert spans.tree() == [
        [
            "consume_transactions",
            ["fetch_transactions"],
            ["start_processing", ["process"], ["handle_success"]],
            ["start_processing", ["process"], ["handle_exception"]],
            ["fetch_transactions"],
        ]
    ]


@pytest.mark.clause("E-23")
@on_both
def test_there_is_one_span_per_attempt_of_every_step(variant: str, spans: Recorded) -> None:
    class Flaky(Batches):
        fetch = failing(OSError("1"), OSError("2"), value=[])

    engine = Engine(variant)
    retry = RetryPolicy(3, backoff=0.001)
    task = engine.task(
        failing(ValueError("1"), ValueError("2"), value="done"),
        success=failing(KeyError("1"), KeyError("2"), KeyError("3")),
        exception=failing(KeyError("4"), None),
        tracer_provider=spans.provider,
    )
    every = policy(process=retry, success=retry, exception=retry, fetch=retry)
    engine.live(task, Transaction("a"), every)
    engine.consume(task, Flaky(()), every)
    assert spans.tree() == [
        ["start_processing", *[["process"]] * 3, *[["handle_success"]] * 3, *[["handle_exception"]] * 2],
        ["consume_transactions", *[["fetch_transactions"]] * 3],
    ]
    for name, count in {
        "process": 3,
        "handle_success": 3,
        "handle_exception": 2,
        "fetch_transactions": 3,
    }.items():
        assert [attributes(span)["conquiet.attempt"] for span in spans.named(name)] == list(range(count))


@pytest.mark.clause("E-23")
@on_both
def test_under_concurrency_each_transaction_has_its_own_branch(variant: str, spans: Recorded) -> None:
    def process(transaction: Transaction) -> Iterator[float]:
        yield 0.001
        if int(transaction.id[3:]) % 3 == 0:
            raise ValueError(transaction.id)

    engine = Engine(variant)
    task = engine.task(process, tracer_provider=spans.provider)
    engine.consume(task, transactions(60), policy(batch=20, concurrency=8))
    ((root, *branches),) = spans.tree()
    assert root == "consume_transactions"
    lives = [branch for branch in branches if branch[0] == "start_processing"]
    assert lives.count(["start_processing", ["process"], ["handle_exception"]]) == 20
    assert lives.count(["start_processing", ["process"], ["handle_success"]]) == 40
    for life in spans.named("start_processing"):
        below = [span for span in spans if span.parent and span.parent.span_id == life.context.span_id]
        ids = {attributes(span)["conquiet.transaction_id"] for span in (life, *below)}
        assert len(ids) == 1  # no branch contains a span of another transaction


@pytest.mark.clause("E-24")
@on_both
def test_attempts_say_what_they_are(variant: str, spans: Recorded) -> None:
    engine = Engine(variant)
    task = engine.task(
        failing(ValueError("not yet"), value=1), name="Invoices", tracer_provider=spans.provider
    )
    engine.consume(
        task,
        [Transaction("a")],
        policy(
            process=RetryPolicy(3, 30, 0.001, 3, 0.5),
            success=RetryPolicy(2),
            fetch=RetryPolicy(4, None, 1, 2, 8),
        ),
    )
    first, second = map(attributes, spans.named("process"))
    described = {
        "conquiet.task": "Invoices",
        "conquiet.step": "process",
        "conquiet.attempt": 0,
        "conquiet.max_attempts": 3,
        "conquiet.timeout": 30.0,
        "conquiet.backoff": 0.001,
        "conquiet.backoff_multiplier": 3.0,
        "conquiet.backoff_cap": 0.5,
        "conquiet.transaction_id": "a",
    }
    assert first == {
        **described,
        "conquiet.category": "SYSTEM",
        "exception.type": "ValueError",
        "exception.message": "transaction a: process raised ValueError: not yet",
    }
    assert second == {**described, "conquiet.attempt": 1}
    assert attributes(spans.one("handle_success")) == {
        "conquiet.task": "Invoices",
        "conquiet.step": "success",
        "conquiet.attempt": 0,
        "conquiet.max_attempts": 2,
        "conquiet.backoff": 0.0,
        "conquiet.backoff_multiplier": 2.0,
        "conquiet.backoff_cap": 0.0,
        "conquiet.transaction_id": "a",
    }
    for fetch in spans.named("fetch_transactions"):
        assert attributes(fetch) == {
            "conquiet.task": "Invoices",
            "conquiet.step": "fetch",
            "conquiet.attempt": 0,
            "conquiet.max_attempts": 4,
            "conquiet.backoff": 1.0,
            "conquiet.backoff_multiplier": 2.0,
            "conquiet.backoff_cap": 8.0,
        }
    assert attributes(spans.one("start_processing")) == {
        "conquiet.task": "Invoices",
        "conquiet.transaction_id": "a",
    }
    assert attributes(spans.one("consume_transactions")) == {"conquiet.task": "Invoices"}
    assert {span.status.status_code for span in spans if "exception.type" not in attributes(span)} == {
        StatusCode.UNSET
    }


@pytest.mark.clause("E-24")
@on_both
@pytest.mark.parametrize(
    ("failure", "kind", "category"),
    [
        (
            TransactionException("no such customer", BUSINESS),
            "conquiet.task.exceptions.TransactionException",
            "BUSINESS",
        ),
        (TimeoutError("no such customer"), "TimeoutError", "TIMEOUT"),
        (LookupError("no such customer"), "LookupError", "SYSTEM"),
    ],
)
def test_a_failure_is_on_the_attempt_and_on_the_transaction(
    variant: str, spans: Recorded, failure: Exception, kind: str, category: str
) -> None:
    engine = Engine(variant)
    engine.live(engine.task(failing(failure), tracer_provider=spans.provider), Transaction("a"))
    for name in ("process", "start_processing"):
        span = spans.one(name)
        said = attributes(span)
        assert said["exception.type"] == kind
        assert said["conquiet.category"] == category
        assert said["exception.message"].endswith("no such customer")
        assert span.status.status_code is StatusCode.ERROR
        assert span.status.description == said["exception.message"]
    assert "exception.type" not in attributes(spans.one("handle_exception"))


@pytest.mark.clause("E-24")
@on_both
def test_a_timeout_is_a_failure_with_the_limit_it_ran_past(variant: str, spans: Recorded) -> None:
    engine = Engine(variant)

    def process(transaction: Transaction) -> Iterator[float]:
        yield 0.2

    task = engine.task(process, tracer_provider=spans.provider)
    engine.live(task, Transaction("a"), policy(process=RetryPolicy(1, timeout=0.01)))
    said = attributes(spans.one("process"))
    assert said["conquiet.category"] == "TIMEOUT"
    assert said["conquiet.timeout"] == 0.01
    assert said["exception.type"] == "conquiet.errors.CallTimeoutError"
    assert "limit of 0.01 s" in said["exception.message"]


@pytest.mark.clause("E-24")
@on_both
def test_a_fetch_that_fails_for_good_is_on_its_attempts_and_on_the_loop(
    variant: str, spans: Recorded
) -> None:
    class Away(Batches):
        fetch = failing(OSError("away"), OSError("away"))

    engine = Engine(variant)
    with pytest.raises(FetchException):
        engine.consume(engine.task(tracer_provider=spans.provider), Away(()), policy(fetch=RetryPolicy(2)))
    assert [attributes(span)["exception.type"] for span in spans.named("fetch_transactions")] == [
        "OSError"
    ] * 2
    loop = spans.one("consume_transactions")
    assert attributes(loop)["exception.type"] == "conquiet.task.exceptions.FetchException"
    assert loop.status.status_code is StatusCode.ERROR


@pytest.mark.clause("E-24")
@on_both
def test_a_long_message_is_cut_at_one_kib(variant: str, spans: Recorded) -> None:
    engine = Engine(variant)
    task = engine.task(failing(ValueError("ß" * 5_000)), tracer_provider=spans.provider)
    engine.live(task, Transaction("a"))
    message = attributes(spans.one("process"))["exception.message"]
    assert 1_000 < len(message.encode()) <= 1_024


@pytest.mark.clause("E-24")
@on_both
def test_a_text_that_utf_8_cannot_hold_is_made_one_that_it_can(variant: str, spans: Recorded) -> None:
    engine = Engine(variant)
    task = engine.task(failing(ValueError("file \udcff")), tracer_provider=spans.provider)
    engine.live(task, Transaction("a"))
    assert attributes(spans.one("process"))["exception.message"].encode().endswith(b"file ?")


@on_both
def test_what_is_no_exception_ends_the_spans_too(variant: str, spans: Recorded) -> None:
    engine = Engine(variant)
    task = engine.task(failing(SystemExit(3)), tracer_provider=spans.provider)
    with pytest.raises(SystemExit):
        engine.live(task, Transaction("a"))
    assert [attributes(spans.one(name))["exception.type"] for name in ("process", "start_processing")] == [
        "SystemExit"
    ] * 2


@on_both
def test_the_process_s_own_provider_is_asked_where_the_task_has_none(
    variant: str, spans: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", spans.provider)
    engine = Engine(variant)
    engine.live(engine.task(), Transaction("a"))
    assert spans.tree() == [["start_processing", ["process"], ["handle_success"]]]


def test_where_nobody_listens_there_are_no_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Spans.if_wanted("test") is None
    assert Spans.if_wanted("test", trace.NoOpTracerProvider()) is None
    monkeypatch.setitem(sys.modules, "opentelemetry", None)  # as if it were not installed
    assert Spans.if_wanted("test", object()) is None


@on_both
@pytest.mark.parametrize("broken", ["on_start", "on_end", "get_tracer"])
def test_a_broken_backend_costs_no_transaction(
    variant: str, broken: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any, **more: Any) -> None:
        raise RuntimeError("the backend is down")

    say_once.cache_clear()
    provider = TracerProvider()
    if broken == "get_tracer":
        monkeypatch.setattr(provider, "get_tracer", fail)
    else:
        provider.add_span_processor(type("Broken", (SpanProcessor,), {broken: fail})())
    engine = Engine(variant)
    handled: list[str] = []
    task = engine.task(
        failing(ValueError("no")),
        exception=lambda transaction, failure: handled.append(transaction.id),
        tracer_provider=provider,
    )
    report = engine.consume(task, transactions(2))
    assert (report.succeeded, report.failed, handled) == (1, 1, ["tx-0"])
    said = [record for record in caplog.records if record.name == "conquiet.observe"]
    assert len(said) == 1
    assert "tracing backend failed" in said[0].getMessage()


@on_both
def test_spans_never_overlap_where_one_runs_at_a_time(variant: str, spans: Recorded) -> None:
    engine = Engine(variant)
    task = engine.task(nothing, tracer_provider=spans.provider)
    engine.consume(task, transactions(20), policy(batch=5))
    lives = spans.named("start_processing")
    assert len(lives) == 20
    for before, after in pairwise(lives):
        assert before.end_time is not None
        assert after.start_time is not None
        assert before.end_time <= after.start_time
