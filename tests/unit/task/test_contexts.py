"""Contexts cross threads, tasks and time limits, are shared by retries, and never reach another transaction."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import context, trace

from conquiet.flow import current_fence
from conquiet.task import Transaction
from conquiet.task.mixins.policies import RetryPolicy
from tests.unit.task.both import Engine, on_both, policy, transactions
from tests.unit.task.recorded import Recorded, attributes

LIMITS = pytest.mark.parametrize("timeout", [None, 30.0], ids=["untimed", "timed"])


@pytest.fixture
def spans() -> Recorded:
    return Recorded()


def current_span_id() -> int:
    return trace.get_current_span().get_span_context().span_id


# -- spans -------------------------------------------------------------------------------------------------------


@pytest.mark.clause("E-22")
@on_both
@LIMITS
@pytest.mark.parametrize("concurrency", [8, 32])
def test_no_span_of_one_transaction_is_above_anothers(
    variant: str, timeout: float | None, concurrency: int, spans: Recorded
) -> None:
    """Every step opens its own spans, waits inside them among all the others, sometimes fails, and leaks one."""

    def step(name: str) -> Any:
        def run(transaction: Transaction, *rest: Any) -> Iterator[float]:
            number = int(transaction.id[3:])
            with spans.tracer.start_as_current_span(f"{name} outer", attributes={"tx": transaction.id}):
                yield 0.0005 * (number % 4)
                with spans.tracer.start_as_current_span(f"{name} inner", attributes={"tx": transaction.id}):
                    yield 0
                context.attach(context.set_value("leaked", transaction.id))  # never detached
                leaked = spans.tracer.start_span(f"{name} leaked", attributes={"tx": transaction.id})
                context.attach(trace.set_span_in_context(leaked))
                leaked.end()
            seen[name][context.get_value("leaked")] += 1
            tries[name, transaction.id] += 1
            if number % 5 == 0 and tries[name, transaction.id] == 1:
                raise ValueError("once")
            if number % 7 == 0 and name == "process":
                raise ValueError("always")

        return run

    seen: dict[str, Counter[Any]] = {name: Counter() for name in ("process", "success", "exception")}
    tries: Counter[tuple[str, str]] = Counter()
    engine = Engine(variant)
    retry = RetryPolicy(2, timeout)
    task = engine.task(step("process"), step("success"), step("exception"), tracer_provider=spans.provider)
    report = engine.consume(
        task,
        transactions(140),
        policy(process=retry, success=retry, exception=retry, concurrency=concurrency, batch=50),
    )
    assert (report.succeeded, report.failed) == (120, 20)
    by_id = {span.context.span_id: span for span in spans}
    owned = 0
    for span in by_id.values():
        own = attributes(span).get("tx") or attributes(span).get("conquiet.transaction_id")
        above = span
        while above.parent is not None:
            above = by_id[above.parent.span_id]
            said = attributes(above)
            assert said.get("tx", own) == own
            assert said.get("conquiet.transaction_id", own) == own
        assert above.name == "consume_transactions"
        owned += own is not None
    assert owned > 140 * 8
    lives = {attributes(span)["conquiet.transaction_id"] for span in spans.named("start_processing")}
    assert len(lives) == 140
    # Attempts are separate, too: the spans of a step are below the attempt that ran it.
    for name, attempt in {
        "process": "process",
        "success": "handle_success",
        "exception": "handle_exception",
    }.items():
        for span in spans.named(f"{name} outer"):
            parent = spans_by(by_id, span)
            assert parent.name == attempt
            assert attributes(parent)["conquiet.transaction_id"] == attributes(span)["tx"]


def spans_by(by_id: dict[int, Any], span: Any) -> Any:
    return by_id[span.parent.span_id]


@pytest.mark.clause("E-22")
@on_both
@LIMITS
def test_retries_share_the_transactions_context(variant: str, timeout: float | None, spans: Recorded) -> None:
    parents, traces = [], []

    def process(transaction: Transaction) -> None:
        span: Any = trace.get_current_span()
        parents.append(span.parent.span_id)
        traces.append(span.get_span_context().trace_id)
        raise ValueError("again")

    engine = Engine(variant)
    task = engine.task(process, tracer_provider=spans.provider)
    with spans.tracer.start_as_current_span("caller"):
        engine.live(task, Transaction("a"), policy(process=RetryPolicy(4, timeout)))
    life = spans.one("start_processing")
    assert parents == [life.context.span_id] * 4
    assert set(traces) == {life.context.trace_id} == {spans.one("caller").context.trace_id}
    assert spans.path(life) == ["caller", "start_processing"]


@pytest.mark.clause("E-22")
@on_both
@LIMITS
def test_the_callers_context_reaches_every_step_and_the_fetch(
    variant: str, timeout: float | None, spans: Recorded
) -> None:
    seen: dict[str, Any] = {}

    def look(name: str) -> Any:
        def step(*args: Any, **extra: Any) -> None:
            seen[name] = (request.get(), current_span_id())
            if name == "success":
                raise ValueError("to the exception handler")

        return step

    class Source:
        left = 1

        def fetch(self, size: int) -> list[Transaction]:
            look("fetch")()
            self.left -= 1
            return [Transaction("a")] if self.left == 0 else []

    engine = Engine(variant)
    retry = RetryPolicy(1, timeout)
    task = engine.task(look("process"), look("success"), look("exception"), tracer_provider=spans.provider)
    token = request.set("request 7")
    try:
        with spans.tracer.start_as_current_span("caller"):
            engine.consume(
                task,
                Source(),
                policy(process=retry, success=retry, exception=retry, fetch=retry, limit=1),
            )
    finally:
        request.reset(token)
    assert {name: value for name, (value, _) in seen.items()} == dict.fromkeys(
        ("fetch", "process", "success", "exception"), "request 7"
    )
    assert {name: span for name, (_, span) in seen.items()} == {
        "fetch": spans.one("fetch_transactions").context.span_id,
        "process": spans.one("process").context.span_id,
        "success": spans.one("handle_success").context.span_id,
        "exception": spans.one("handle_exception").context.span_id,
    }
    assert spans.path(spans.one("process")) == [
        "caller",
        "consume_transactions",
        "start_processing",
        "process",
    ]


request: contextvars.ContextVar[str] = contextvars.ContextVar("request", default="none")


@pytest.mark.clause("E-22")
@on_both
def test_nothing_is_left_in_the_callers_context(variant: str, spans: Recorded) -> None:
    engine = Engine(variant)

    def process(transaction: Transaction) -> None:
        request.set("changed")
        context.attach(context.set_value("leaked", True))

    task = engine.task(process, tracer_provider=spans.provider)
    before = dict(contextvars.copy_context())
    engine.live(task, Transaction("a"))
    engine.consume(task, transactions(3))
    assert dict(contextvars.copy_context()) == before
    assert current_span_id() == 0


@pytest.mark.clause("E-22")
def test_one_asyncio_task_that_runs_several_loops_keeps_them_apart(spans: Recorded) -> None:
    engine = Engine("asyncio")
    tasks = [engine.task(name=f"Task{n}", tracer_provider=spans.provider) for n in range(5)]

    async def all_of_them() -> None:
        await asyncio.gather(*(task.start_processing(Transaction(type(task).__name__)) for task in tasks))
        for task in tasks:
            await task.start_processing(Transaction(type(task).__name__))
        assert current_span_id() == 0

    asyncio.run(all_of_them())
    lives = spans.named("start_processing")
    assert len(lives) == 10
    assert all(span.parent is None for span in lives)


# -- state of one transaction in another -------------------------------------------------------------------------


@pytest.mark.clause("E-30")
@on_both
@LIMITS
@pytest.mark.parametrize("concurrency", [1, 8])
def test_what_a_step_sets_is_seen_by_nobody_else(
    variant: str, timeout: float | None, concurrency: int
) -> None:
    """Not by other transactions, and not by later steps and attempts: each starts from the caller's context."""
    seen: Counter[str] = Counter()

    def step(transaction: Transaction, *rest: Any) -> Iterator[float]:
        seen[request.get()] += 1
        request.set(transaction.id)
        yield 0.0005
        seen["own" if request.get() == transaction.id else "another's"] += 1
        if not rest:
            raise ValueError("again")

    engine = Engine(variant)
    retry = RetryPolicy(2, timeout)
    report = engine.consume(
        engine.task(step, step, step),
        transactions(50),
        policy(process=retry, exception=retry, concurrency=concurrency, batch=10),
    )
    assert report.failed == 50
    assert seen == {"none": 150, "own": 150}


@pytest.mark.clause("E-30")
@on_both
@LIMITS
def test_the_thread_of_a_step_holds_nothing_of_the_last_one(variant: str, timeout: float | None) -> None:
    """Threads are reused: a value left in the thread's own context would be visible."""
    engine = Engine(variant)
    found: list[dict[Any, Any]] = []

    def process(transaction: Transaction) -> None:
        found.append({var.name: value for var, value in contextvars.copy_context().items()})
        request.set(transaction.id)

    for _ in range(3):
        engine.consume(engine.task(process), transactions(10), policy(process=RetryPolicy(1, timeout)))
    assert len(found) == 30
    names = {name for variables in found for name in variables}
    assert "request" not in names
    assert "conquiet_strict_io" not in names


# -- abandoned calls ---------------------------------------------------------------------------------------------


@pytest.mark.clause("E-22", "E-30")
def test_an_abandoned_attempt_is_fenced_and_touches_nothing_of_the_next() -> None:
    go, left, fences = threading.Event(), threading.Event(), []

    def process(transaction: Transaction) -> str:
        fences.append(current_fence())
        if len(fences) == 1:
            request.set("from the abandoned one")
            go.wait(30)
            request.set("later still")
            left.set()
            return "too late"
        seen.append(request.get())
        assert not current_fence().closed
        return "in time"

    seen: list[str] = []
    engine = Engine("threads")
    outcome = engine.live(
        engine.task(process, success=lambda tx, result: seen.append(result)),
        Transaction("a"),
        policy(process=RetryPolicy(2, 0.25)),
    )
    assert fences[0].closed
    go.set()
    assert left.wait(30)
    assert outcome.result == "in time"
    assert seen == ["none", "in time"]
    assert not fences[1].closed
