"""Arguments, ids and interrupts that nobody hopes for: each is told clearly, and none is waited for."""

from __future__ import annotations

import gc
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from prometheus_client import REGISTRY

from conquiet.clock import SYSTEM_CLOCK, Parker
from conquiet.connectors import AsyncIterableConnector, IterableConnector
from conquiet.errors import AbandonedThreadsError, TaskConfigError
from conquiet.flow import THREADS
from conquiet.task import AsyncConsumerTask, ConnectorContractException, ConsumerTask, Outcome, Transaction
from conquiet.task.mixins.policies import RetryPolicy
from tests.unit.task.both import Batches, Engine, on_both, policy, transactions


@pytest.fixture
def release() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


@on_both
@pytest.mark.parametrize("name", [5, None, ["a"], {"a": 1}, b"a"], ids=repr)
@pytest.mark.clause("E-13")
def test_an_id_that_is_no_text_breaks_the_contract(variant: str, name: Any) -> None:
    engine = Engine(variant)
    batch = [Transaction("good"), Transaction(name)]
    with pytest.raises(
        ConnectorContractException, match=f"whose id is of type {type(name).__name__}"
    ) as raised:
        engine.consume(engine.task(), batch, policy(batch=2))
    assert raised.value.report is not None
    assert (raised.value.report.fetched, raised.value.report.unsettled) == (2, 2)
    assert all(isinstance(outcome.transaction_id, str) for outcome in raised.value.report.outcomes)


@on_both
@pytest.mark.parametrize("what", [Transaction(["a"]), Transaction(5), "a", None], ids=repr)  # type: ignore[arg-type]
def test_start_processing_refuses_what_is_no_transaction(variant: str, what: Any) -> None:
    engine = Engine(variant)
    with pytest.raises(TaskConfigError, match=r"a Transaction is processed|id of a transaction is a text"):
        engine.live(engine.task(), what)


@on_both
@pytest.mark.parametrize("what", [{"loop": {}}, None, RetryPolicy(), 3], ids=repr)
def test_a_policy_is_a_policy(variant: str, what: Any) -> None:
    task: Any = Engine(variant).task()
    for call in (
        lambda: task.consume_transactions(Batches(()), what),
        lambda: task.start_processing(Transaction("a"), what),
    ):
        with pytest.raises(TaskConfigError, match="policy must be a ConsumerPolicy, not"):
            _driven(call())


def _driven(call: Any) -> Any:
    if hasattr(call, "send"):
        call.send(None)
    return call


@on_both
def test_on_outcome_is_callable(variant: str) -> None:
    engine = Engine(variant)
    with pytest.raises(TaskConfigError, match="on_outcome must be callable, not list"):
        engine.consume(engine.task(), (), on_outcome=[])


def test_a_thousand_places_for_one_transaction_take_one_thread() -> None:
    engine, before = Engine("threads"), THREADS.started
    report = engine.consume(engine.task(), transactions(1), policy(concurrency=1_000, batch=1_000))
    assert report.succeeded == 1
    assert THREADS.started - before <= 3


@pytest.mark.clause("E-14")
def test_as_many_places_as_there_are_transactions_are_used(release: threading.Event) -> None:
    """Each waits for all others: with one place less, none would end."""
    together = threading.Barrier(20)
    engine = Engine("threads")
    report = engine.consume(
        engine.task(lambda tx: together.wait(30) and None), transactions(40), policy(concurrency=20, batch=20)
    )
    assert report.succeeded == 40


class Interrupting:
    """A clock on which every wait of one thread ends with Ctrl-C, once it is armed."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self.armed = threading.Event()
        self.interrupts = 0

    def time(self) -> float:
        return SYSTEM_CLOCK.time()

    def monotonic(self) -> float:
        return SYSTEM_CLOCK.monotonic()

    def wait(self, parker: Parker, timeout: float | None) -> bool:
        if threading.get_ident() == self._thread:
            self.armed.wait(30)
            self.interrupts += 1
            raise KeyboardInterrupt
        return SYSTEM_CLOCK.wait(parker, timeout)


@pytest.mark.clause("E-32")
@pytest.mark.parametrize("hangs", ["process", "settle"])
def test_a_second_interrupt_ends_the_loop_at_once(
    hangs: str, release: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Interrupting()

    class Task(ConsumerTask):
        def process_transaction(self, transaction: Transaction) -> None:
            if hangs == "process":
                clock.armed.set()
                release.wait(60)

    class Source:
        def fetch_transactions(self, batch_size: int, **extra: Any) -> list[Transaction]:
            return transactions(1)

        def settle(self, outcomes: list[Outcome]) -> None:
            clock.armed.set()
            release.wait(60)

    limits = policy(limit=1)
    with pytest.raises(KeyboardInterrupt) as caught:
        Task().consume_transactions(Source(), limits, clock=clock)
    assert clock.interrupts == 2
    assert not release.is_set()
    assert any("1 fetched, 0 succeeded, 0 failed, 1 unsettled" in note for note in caught.value.__notes__)
    assert "interrupted again while the loop was ending: 1 transactions were not given back" in caplog.text


@pytest.mark.clause("E-32")
def test_hanging_calls_of_start_processing_are_bounded_and_counted(release: threading.Event) -> None:
    def gauge() -> float | None:
        return REGISTRY.get_sample_value("conquiet_engine_abandoned_threads", {"task": "HangingAlone"})

    class HangingAlone(ConsumerTask):
        def process_transaction(self, transaction: Transaction) -> None:
            release.wait(60)

    limits = policy(process=RetryPolicy(1, timeout=0.01), max_abandoned_threads=3)
    for _ in range(4):
        assert HangingAlone().start_processing(Transaction("a"), limits).category == "TIMEOUT"
    with pytest.raises(AbandonedThreadsError, match="max_abandoned_threads is 3"):
        HangingAlone().start_processing(Transaction("a"), limits)
    assert gauge() == 4
    gc.collect()
    assert gauge() == 4


@on_both
def test_a_task_without_process_transaction_is_refused_before_anything_is_fetched(variant: str) -> None:
    engine, fetched = Engine(variant), list[int]()

    class Source(Batches):
        def fetch(self, size: int, **extra: Any) -> list[Transaction]:
            fetched.append(size)
            return []

    task: Any = type("Idle", (ConsumerTask if variant == "threads" else AsyncConsumerTask,), {})()
    for call in (
        lambda: engine.consume(task, Source(())),
        lambda: engine.live(task, Transaction("a")),
    ):
        with pytest.raises(TaskConfigError, match="Idle has no process_transaction: implement it"):
            call()
    task.process_transaction = "later"
    with pytest.raises(TaskConfigError, match="Idle.process_transaction must be callable, not str"):
        engine.consume(task, Source(()))
    assert not fetched


def _lazily(self: Any, *args: Any) -> Iterator[None]:
    yield


async def _lazily_async(self: Any, *args: Any) -> AsyncIterator[None]:
    yield


@on_both
@pytest.mark.parametrize("step", [_lazily, _lazily_async])
@pytest.mark.parametrize("name", ["process_transaction", "handle_transaction_exception"])
def test_a_generator_is_refused_because_its_body_would_never_run(variant: str, step: Any, name: str) -> None:
    engine = Engine(variant)
    task = engine.task()
    setattr(type(task), name, step)
    for call in (lambda: engine.consume(task, ()), lambda: engine.live(task, Transaction("a"))):
        with pytest.raises(TaskConfigError, match=rf"Task\.{name} is a(n asynchronous)? generator function"):
            call()


async def _numbers() -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: IterableConnector(_numbers()), "async_generator .*asynchronous.* AsyncIterableConnector"),  # type: ignore[arg-type]
        (lambda: IterableConnector(5), "IterableConnector .*an iterable, not int"),  # type: ignore[arg-type]
        (lambda: AsyncIterableConnector(5), "AsyncIterableConnector .*an iterable, not int"),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_iterable_of_that_kind_is_refused_in_words(make: Any, message: str) -> None:
    with pytest.raises(TaskConfigError, match=message):
        make()


@on_both
@pytest.mark.parametrize("source", [[1, 2], _numbers()], ids=["list", "async"])
def test_a_bare_iterable_is_no_connector_and_the_message_says_what_makes_one(
    variant: str, source: Any
) -> None:
    task: Any = Engine(variant).task()
    with pytest.raises(TaskConfigError, match=r"has no method fetch_transactions.*IterableConnector"):
        _driven(task.consume_transactions(source))
