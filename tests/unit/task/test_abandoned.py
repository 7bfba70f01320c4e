"""Threads that run past a time limit are counted, reported and bounded, and the engine keeps its full concurrency."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import prometheus_client
import pytest
from prometheus_client import REGISTRY

from conquiet.observe.failsafe import say_once
from conquiet.task import StopReason, Transaction
from conquiet.task.exceptions import AbandonedThreadsError, ExceptionCategory
from conquiet.task.mixins.policies import RetryPolicy
from tests.unit.task.both import Batches, Engine, on_both, policy, transactions

pytestmark = pytest.mark.clause("E-32")

SOON = RetryPolicy(1, timeout=0.25)  # enough for a call that does nothing, even on a busy machine


@pytest.fixture
def release() -> Iterator[threading.Event]:
    """An event that the hanging calls of a test wait for. It is set at the end."""
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A unique class name for the test's task: metrics are kept by class name."""
    return "".join(part.title() for part in request.node.name.split("_")).replace("[", "").replace("]", "")


def gauge(name: str) -> float | None:
    return REGISTRY.get_sample_value("conquiet_engine_abandoned_threads", {"task": name})


def eventually(value: float, name: str) -> None:
    deadline = time.monotonic() + 20
    while gauge(name) != value:
        assert time.monotonic() < deadline, f"the gauge of {name} is {gauge(name)}, not {value}"
        time.sleep(0.002)


@pytest.mark.parametrize("limit", ["step", "transaction"])
def test_they_are_in_the_report_and_in_a_metric_that_falls_when_they_end(
    limit: str, release: threading.Event, name: str
) -> None:
    engine = Engine("threads")

    def process(transaction: Transaction) -> None:
        if transaction.id in ("tx-1", "tx-3", "tx-4"):
            release.wait(30)

    limits: dict[str, Any] = {"process": SOON} if limit == "step" else {"transaction_timeout": 0.25}
    report = engine.consume(
        engine.task(process, name=name), transactions(8), policy(concurrency=4, batch=4, **limits)
    )
    assert report.abandoned_threads == 3
    assert (report.succeeded, report.failed) == (5, 3)
    assert report.by_category == {"TIMEOUT": 3}
    assert gauge(name) == 3  # the loop has ended, the threads have not
    release.set()
    eventually(0, name)
    assert report.abandoned_threads == 3


def test_success_and_failure_are_counted_in_the_metrics(name: str) -> None:
    engine = Engine("threads")

    def process(transaction: Transaction) -> None:
        if transaction.id == "tx-2":
            raise ValueError("no")

    for _ in range(2):
        engine.consume(engine.task(process, name=name), transactions(5), policy(batch=2))

    def counted(status: str, category: str) -> float | None:
        labels = {"task": name, "status": status, "category": category}
        return REGISTRY.get_sample_value("conquiet_engine_transactions_total", labels)

    assert counted("succeeded", "") == 8
    assert counted("failed", "SYSTEM") == 2
    assert gauge(name) == 0


@pytest.mark.parametrize("broken", ["labels", "inc"])
def test_a_broken_metrics_backend_costs_no_transaction(
    broken: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*args: Any) -> None:
        raise RuntimeError("the backend is down")

    say_once.cache_clear()
    monkeypatch.setattr(prometheus_client.Counter, broken, fail)
    monkeypatch.setattr(prometheus_client.Gauge, "set_function", fail)
    engine = Engine("threads")
    assert engine.consume(engine.task(), transactions(5)).succeeded == 5
    assert [record.getMessage() for record in caplog.records if record.name == "conquiet.observe"] == [
        "the metrics backend failed; the work continues, metrics may be wrong (logged once)"
    ]


@pytest.mark.parametrize(("bound", "concurrency"), [(0, 1), (2, 1), (2, 4), (5, 3)])
def test_past_the_bound_the_loop_ends_and_accounts_for_everything(
    bound: int, concurrency: int, release: threading.Event
) -> None:
    begun: list[str] = []
    told: list[Any] = []

    def process(transaction: Transaction) -> None:
        begun.append(transaction.id)
        release.wait(30)

    engine = Engine("threads")
    with pytest.raises(AbandonedThreadsError) as caught:
        engine.consume(
            engine.task(process),
            transactions(40),
            policy(process=SOON, concurrency=concurrency, batch=10, max_abandoned_threads=bound),
            on_outcome=told.append,
        )
    assert "restart the process" in str(caught.value)
    report = caught.value.report
    assert report.stop_reason is StopReason.ERROR
    assert bound < report.abandoned_threads <= bound + concurrency
    assert len(begun) <= bound + concurrency
    assert report.fetched == report.succeeded + report.failed + report.unsettled
    assert report.failed > bound
    assert report.succeeded == 0
    assert sorted(outcome.transaction_id for outcome in told) == sorted(
        f"tx-{number}" for number in range(report.fetched)
    )


def test_one_too_many_is_an_error_even_where_nothing_follows(release: threading.Event) -> None:
    engine = Engine("threads")
    with pytest.raises(AbandonedThreadsError, match="max_abandoned_threads is 2") as caught:
        engine.consume(
            engine.task(lambda tx: release.wait(30)),
            transactions(3),
            policy(process=SOON, max_abandoned_threads=2),
        )
    assert (caught.value.report.failed, caught.value.report.unsettled) == (3, 0)


def test_within_the_bound_it_goes_on(release: threading.Event) -> None:
    engine = Engine("threads")

    def process(transaction: Transaction) -> None:
        if int(transaction.id[3:]) < 3:
            release.wait(30)

    report = engine.consume(
        engine.task(process), transactions(20), policy(process=SOON, batch=5, max_abandoned_threads=3)
    )
    assert (report.failed, report.succeeded, report.abandoned_threads) == (3, 17, 3)


@pytest.mark.parametrize("concurrency", [1, 4])
def test_no_place_is_lost_to_them(concurrency: int, release: threading.Event) -> None:
    """After three times as many timeouts as there are places, as many transactions run in parallel as before."""
    hanging = 3 * concurrency
    together = threading.Barrier(concurrency)
    running, most, lock = 0, 0, threading.Lock()

    def process(transaction: Transaction) -> None:
        nonlocal running, most
        if int(transaction.id[3:]) < hanging:
            release.wait(30)
            return
        with lock:
            running += 1
            most = max(most, running)
        together.wait(20)  # passed only when all are here
        with lock:
            running -= 1

    engine = Engine("threads")
    report = engine.consume(
        engine.task(process),
        transactions(hanging + 5 * concurrency),
        policy(process=RetryPolicy(1, timeout=0.6), concurrency=concurrency, batch=concurrency),
    )
    assert (report.failed, report.succeeded) == (hanging, 5 * concurrency)
    assert most == concurrency


def test_one_that_ends_makes_room_for_another(name: str) -> None:
    """Five calls hang in total, but never two at a time: a bound of one is not reached."""
    gates = [threading.Event() for _ in range(10)]

    def process(transaction: Transaction) -> None:
        number = int(transaction.id[3:])
        if number % 2 == 0:
            gates[number].wait(30)
        else:
            gates[number - 1].set()

    def settled(outcome: Any) -> None:
        if int(outcome.transaction_id[3:]) % 2 == 1:
            eventually(0, name)

    engine = Engine("threads")
    report = engine.consume(
        engine.task(process, name=name),
        transactions(10),
        policy(process=SOON, max_abandoned_threads=1),
        on_outcome=settled,
    )
    assert (report.failed, report.succeeded, report.abandoned_threads) == (5, 5, 0)


def test_fetches_that_hang_are_bounded_too(release: threading.Event) -> None:
    class Hanging(Batches):
        calls = 0

        def fetch(self, size: int, **extra: Any) -> list[Transaction]:
            self.calls += 1
            release.wait(30)
            return []

    source, engine = Hanging(()), Engine("threads")
    with pytest.raises(AbandonedThreadsError) as caught:
        engine.consume(
            engine.task(), source, policy(fetch=RetryPolicy(100, timeout=0.01), max_abandoned_threads=3)
        )
    assert source.calls == 4
    assert caught.value.report.abandoned_threads == 4
    assert caught.value.report.fetched == 0


def test_one_transaction_by_itself_is_bounded_too(release: threading.Event) -> None:
    attempts: list[str] = []

    def process(transaction: Transaction) -> None:
        attempts.append(transaction.id)
        release.wait(30)

    engine = Engine("threads")
    with pytest.raises(AbandonedThreadsError):
        engine.live(
            engine.task(process),
            Transaction("a"),
            # Long enough for a thread to begin on a busy machine.
            policy(process=RetryPolicy(100, timeout=0.5), max_abandoned_threads=3),
        )
    assert len(attempts) == 4


def test_what_the_end_of_the_loop_cuts_off_is_counted_as_well(release: threading.Event, name: str) -> None:
    begun = threading.Event()

    def process(transaction: Transaction) -> None:
        begun.set()
        release.wait(30)  # without its own limit, so it runs on a runner's thread

    engine = Engine("threads")
    report = engine.consume(
        engine.task(process, name=name), transactions(3), policy(timeout=0.2, concurrency=2, batch=3)
    )
    assert begun.is_set()
    assert report.stop_reason is StopReason.LOOP_TIMEOUT
    assert (report.unsettled, report.abandoned_threads) == (3, 2)
    assert gauge(name) == 2
    release.set()
    eventually(0, name)


def test_coroutines_are_cancelled_and_none_is_ever_abandoned(name: str) -> None:
    cancelled: list[str] = []

    def process(transaction: Transaction) -> Iterator[float]:
        try:
            yield 30
        finally:
            cancelled.append(transaction.id)

    engine = Engine("asyncio")
    report = engine.consume(
        engine.task(process, name=name),
        transactions(30),
        policy(process=RetryPolicy(1, timeout=0.01), concurrency=8, batch=10, max_abandoned_threads=0),
    )
    assert report.by_category == {ExceptionCategory.TIMEOUT: 30}
    assert report.abandoned_threads == gauge(name) == 0
    assert len(cancelled) == 30


@on_both
def test_no_limit_no_abandoned_threads(variant: str) -> None:
    engine = Engine(variant)
    assert engine.consume(engine.task(), transactions(50), policy(batch=10)).abandoned_threads == 0


def test_a_process_ends_although_threads_of_it_hang() -> None:
    program = """
import threading
from conquiet.connectors import IterableConnector
from conquiet.task import ConsumerTask
from conquiet.task.mixins.policies import *

class Hang(ConsumerTask):
    def process_transaction(self, transaction):
        threading.Event().wait()

step = ConsumerPolicy(steps=ConsumerSteps(process=ProcessPolicy(RetryPolicy(timeout=0.05))))
loop = ConsumerPolicy(loop=ConsumerLoopPolicy(timeout=0.2))
for policy in (step, loop):
    print(Hang().consume_transactions(IterableConnector([1]), policy).abandoned_threads)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.returncode) == ("1\n1\n", 0)
    (failure,) = done.stderr.splitlines()  # the log of the first one, and nothing else
    assert failure.startswith("transaction 0: failed with TIMEOUT at attempt 1: ")
