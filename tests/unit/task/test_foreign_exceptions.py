"""Whatever a task raises, it is wrapped as SYSTEM, retried and told: no class of exception can end the loop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from conquiet.task import ExceptionCategory, Transaction, TransactionException
from conquiet.task.exceptions import FetchException, SettleException
from conquiet.task.mixins.policies import RetryPolicy
from tests.unit.task.both import Batches, Engine, on_both, policy, transactions
from tests.unit.task.recorded import Recorded

pytestmark = pytest.mark.clause("E-05", "E-29")


@dataclass(frozen=True)
class Frozen(Exception):
    reason: str = "frozen"


class OddNotes(Exception):
    __notes__ = 5  # type: ignore[assignment]


class RaisingNotes(Exception):
    @property
    def __notes__(self) -> Any:  # type: ignore[override]
        raise RuntimeError("no notes")


class NoAttributes(Exception):
    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"no {name}")


class NotSettable(Exception):
    def __setattr__(self, name: str, value: Any) -> None:
        raise RuntimeError(f"{name} cannot be set")


class NoArgs(Exception):
    @property
    def args(self) -> Any:  # type: ignore[override]
        raise RuntimeError("no args")


class NoTexts(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class HasNoLinks(Exception):
    @property
    def __cause__(self) -> Any:  # type: ignore[override]
        raise RuntimeError("no cause")

    __context__ = __cause__


@dataclass(eq=True)
class Unhashable(Exception):
    reason: str = "equal to others"


class Bare(TransactionException):
    """A subclass that does not call its base's __init__."""

    def __init__(self) -> None:
        pass


@dataclass(frozen=True)
class FrozenRefusal(TransactionException):
    reason: str = "frozen"


class Spelled(TransactionException):
    def __init__(self) -> None:
        super().__init__("as text")
        self.category = "BUSINESS"  # type: ignore[assignment]


ODD: dict[str, type[Exception]] = {
    kind.__name__: kind
    for kind in (
        Frozen,
        OddNotes,
        RaisingNotes,
        NoAttributes,
        NotSettable,
        NoArgs,
        NoTexts,
        HasNoLinks,
        Unhashable,
        Bare,
        FrozenRefusal,
    )
}
every_odd_one = pytest.mark.parametrize("kind", ODD)


def chained(kind: str, where: str) -> BaseException:
    """The odd exception itself, as the cause or the context of another one, or in a group."""
    odd = ODD[kind]()
    if where == "itself":
        return odd
    if where == "group":
        return ExceptionGroup("several", [odd])
    above = ValueError("above")
    setattr(above, f"__{where}__", odd)
    return above


@on_both
@every_odd_one
@pytest.mark.parametrize("where", ["itself", "cause", "context", "group"])
def test_it_is_wrapped_retried_and_told_and_its_neighbours_are_processed(
    variant: str, kind: str, where: str
) -> None:
    engine, spans, told = Engine(variant), Recorded(), list[tuple[str, Any]]()

    def process(transaction: Transaction) -> None:
        if transaction.id == "tx-1":
            raise chained(kind, where)

    settled: list[str] = []

    class Settling(Batches):
        def settle(self, outcomes: Any) -> None:
            settled.extend(outcome.transaction_id for outcome in outcomes)

    source = Settling(transactions(3))
    task = engine.task(
        process,
        exception=lambda tx, error: told.append((tx.id, error)),
        tracer_provider=spans.provider,
    )
    report = engine.consume(task, source, policy(process=RetryPolicy(3), batch=3))
    assert (report.succeeded, report.failed, report.unsettled) == (2, 1, 0)
    ((name, error),) = told
    assert name == "tx-1"
    assert isinstance(error, TransactionException)
    assert (error.category, error.transaction_id) == (ExceptionCategory.SYSTEM, "tx-1")
    assert report.outcomes[0].attempts == 3
    assert sorted(settled) == ["tx-0", "tx-1", "tx-2"]


@on_both
@every_odd_one
def test_a_handler_may_raise_it_too(variant: str, kind: str) -> None:
    engine = Engine(variant)

    def fail(*args: Any) -> None:
        raise ODD[kind]()

    report = engine.consume(engine.task(fail, exception=fail), transactions(2), policy(batch=2))
    assert (report.failed, report.unsettled) == (2, 0)


@on_both
@every_odd_one
@pytest.mark.parametrize("step", ["fetch", "settle"])
def test_a_connector_may_raise_it_too(variant: str, kind: str, step: str) -> None:
    engine, calls = Engine(variant), list[int]()

    class Odd(Batches):
        def fetch(self, size: int, **extra: Any) -> list[Transaction]:
            calls.append(size)
            if step == "fetch":
                raise ODD[kind]()
            return super().fetch(size)

        def settle(self, outcomes: Any) -> None:
            raise ODD[kind]()

    expected = FetchException if step == "fetch" else SettleException
    with pytest.raises(expected, match=kind) as caught:
        engine.consume(engine.task(), Odd(transactions(1)), policy(fetch=RetryPolicy(3)))
    assert caught.value.report is not None
    if step == "fetch":
        assert len(calls) == 3


@on_both
@pytest.mark.parametrize(
    "kind", [kind for kind in ODD if kind != "NoTexts"]
)  # asyncio.run cannot carry that one
def test_on_outcome_may_raise_it_too(variant: str, kind: str) -> None:
    engine = Engine(variant)

    def on_outcome(outcome: Any) -> None:
        raise ODD[kind]()

    raised: type[BaseException] | None = None
    try:  # pytest.raises reads attributes, which some of them refuse
        engine.consume(engine.task(), transactions(1), on_outcome=on_outcome)
    except Exception as error:
        raised = type(error)
    assert raised is ODD[kind]


@on_both
@pytest.mark.clause("E-07")
def test_a_category_given_as_text_is_that_category(variant: str) -> None:
    engine, attempts = Engine(variant), list[str]()

    def process(transaction: Transaction) -> None:
        attempts.append(transaction.id)
        raise Spelled

    report = engine.consume(engine.task(process), transactions(1), policy(process=RetryPolicy(5)))
    assert len(attempts) == 1
    assert report.by_category == {"BUSINESS": 1}
