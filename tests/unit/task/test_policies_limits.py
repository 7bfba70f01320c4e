"""A limit inside a step belongs to the step: it is not mistaken for the engine's."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from conquiet.errors import CallTimeoutError
from conquiet.task import StopReason, Transaction
from conquiet.task.exceptions import ExceptionCategory, FetchTimeoutException
from conquiet.task.mixins.policies import RetryPolicy
from conquiet.task.mixins.utils import run_with_timeout
from tests.unit.task.both import Batches, Engine, on_both, policy, transactions

pytestmark = pytest.mark.clause("E-18")


@pytest.fixture
def release() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


@on_both
@pytest.mark.parametrize(
    "limits",
    [{"transaction_timeout": 60}, {"process": 60}, {"transaction_timeout": 60, "process": 50}, {}],
    ids=str,
)
def test_a_call_that_the_task_limits_itself_is_retried_as_a_timeout(
    variant: str, limits: dict[str, Any], release: threading.Event
) -> None:
    seen: list[str] = []

    def process(transaction: Transaction) -> str:
        seen.append(transaction.id)
        if len(seen) < 3:
            run_with_timeout(release.wait, 30, timeout=0.01)
        return "in the end"

    engine = Engine(variant)
    chosen = policy(
        process=RetryPolicy(3, limits.get("process")), transaction_timeout=limits.get("transaction_timeout")
    )
    outcome = engine.live(engine.task(process), Transaction("a"), chosen)
    assert (outcome.result, outcome.attempts) == ("in the end", 3)
    seen.clear()
    outcome = engine.live(engine.task(process), Transaction("a"), policy(process=RetryPolicy(2, 60)))
    assert outcome.category is ExceptionCategory.TIMEOUT
    assert "limit of 0.01 s" in str(outcome.exception)  # its own limit, not the step's 60 s


@on_both
def test_a_call_that_a_connector_limits_itself_does_not_end_the_loop_as_its_timeout(variant: str) -> None:
    class Slow(Batches):
        calls = 0

        def fetch(self, size: int, **extra: Any) -> list[Transaction]:
            self.calls += 1
            if self.calls % 3:
                raise CallTimeoutError("its own socket ran past its limit of 0.01 s")
            return super().fetch(size)

    engine = Engine(variant)
    source = Slow(transactions(2))
    report = engine.consume(engine.task(), source, policy(fetch=RetryPolicy(3), timeout=60))
    assert (report.succeeded, report.stop_reason) == (2, StopReason.DRAINED)
    with pytest.raises(FetchTimeoutException, match="its own socket"):
        engine.consume(engine.task(), Slow(()), policy(fetch=RetryPolicy(2), timeout=60))
