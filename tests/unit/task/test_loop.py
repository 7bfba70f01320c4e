"""The consume loop: its report, its errors and what they carry."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest

from conquiet.errors import TaskConfigError
from conquiet.flow import Signal
from conquiet.task import (
    ConsumerTask,
    Outcome,
    OutcomeStatus,
    StopReason,
    Transaction,
)
from conquiet.task.exceptions import (
    ExceptionCategory,
    FetchException,
    FetchTimeoutException,
    SettleException,
    TransactionException,
)
from conquiet.task.mixins.policies import (
    BatchPolicy,
    ConcurrencyPolicy,
    ConsumerLoopPolicy,
    ConsumerPolicy,
    ConsumerSteps,
    FetchPolicy,
    RetryPolicy,
)
from tests.unit.task.both import Engine, on_both


class Batches:
    """A connector that hands out the given batches."""

    def __init__(self, *batches: Any) -> None:
        self.batches = list(batches)

    def fetch_transactions(self, batch_size: int, **extra: Any) -> Any:
        batch = self.batches.pop(0) if self.batches else []
        if isinstance(batch, BaseException):
            raise batch
        return batch


class Settled(Batches):
    def __init__(self, *batches: Any) -> None:
        super().__init__(*batches)
        self.settled: list[Outcome] = []
        self.sizes: list[int] = []
        self.error: Exception | None = None

    def settle(self, outcomes: Sequence[Outcome]) -> None:
        self.sizes.append(len(outcomes))
        self.settled += outcomes
        if self.error is not None:
            raise self.error


class Refusing(ConsumerTask):
    """Rejects every odd number."""

    def process_transaction(self, transaction: Transaction) -> Any:
        if transaction.payload % 2:
            raise TransactionException("odd", ExceptionCategory.BUSINESS)
        return transaction.payload


def numbers(*of: int) -> list[Transaction]:
    return [Transaction(f"n{number}", number) for number in of]


def batches_of(size: int, **loop: Any) -> ConsumerPolicy:
    return ConsumerPolicy(ConsumerLoopPolicy(BatchPolicy(size), **loop))


def test_the_report_accounts_for_everything() -> None:
    report = Refusing().consume_transactions(Batches(numbers(0, 1, 2), numbers(3)), batches_of(3))
    assert (report.fetched, report.processed, report.succeeded, report.failed) == (4, 4, 2, 2)
    assert (report.unsettled, report.abandoned_threads) == (0, 0)
    assert report.by_category == {"BUSINESS": 2}
    assert report.stop_reason is StopReason.DRAINED
    assert [outcome.transaction_id for outcome in report.outcomes] == ["n1", "n3"]
    assert str(report) == "drained: 4 fetched, 2 succeeded, 2 failed, 0 unsettled"


@pytest.mark.clause("E-29")
def test_a_report_keeps_the_first_thousand_failures_and_on_outcome_sees_all() -> None:
    seen: list[str] = []
    report = Refusing().consume_transactions(
        Batches(*(numbers(*range(at, at + 100)) for at in range(0, 2_400, 100))),
        batches_of(100, concurrency=ConcurrencyPolicy(4)),
        on_outcome=lambda outcome: seen.append(outcome.transaction_id),
    )
    assert (report.fetched, report.failed, len(report.outcomes)) == (2_400, 1_200, 1_000)
    assert sorted(seen) == sorted(f"n{number}" for number in range(2_400))


def test_settling_is_done_in_batches() -> None:
    connector = Settled(*(numbers(*range(at, at + 50)) for at in range(0, 500, 50)))
    report = Refusing().consume_transactions(connector, batches_of(50))
    assert report.fetched == len(connector.settled) == 500
    assert len(connector.sizes) < 100, "one message to the source serves many transactions"


@pytest.mark.clause("E-10", "E-29")
def test_a_fetch_that_fails_for_good_raises_with_its_cause_and_the_report() -> None:
    error = OSError("no route to host")
    with pytest.raises(FetchException) as raised:
        Refusing().consume_transactions(Batches(numbers(0), error), batches_of(1))
    assert not isinstance(raised.value, FetchTimeoutException)
    assert raised.value.__cause__ is error
    assert str(raised.value) == "fetching failed after 1 attempt: OSError: no route to host"
    report = raised.value.report
    assert report is not None
    assert (report.stop_reason, report.fetched, report.succeeded) == (StopReason.ERROR, 1, 1)


@pytest.mark.clause("E-10")
def test_a_fetch_that_runs_out_of_something_to_iterate_is_an_error_and_no_end() -> None:
    with pytest.raises(FetchException, match="StopIteration"):
        Refusing().consume_transactions(Batches(StopIteration()), batches_of(1))


@pytest.mark.clause("E-10")
def test_a_fetch_that_times_out_for_good_is_a_timeout_error() -> None:
    policy = ConsumerPolicy(steps=ConsumerSteps(fetch=FetchPolicy(RetryPolicy(2))))
    with pytest.raises(FetchTimeoutException, match="after 2 attempts: TimeoutError: slow") as raised:
        Refusing().consume_transactions(Batches(TimeoutError("slow"), TimeoutError("slow")), policy)
    assert isinstance(raised.value, TimeoutError)


@pytest.mark.clause("E-10", "E-29")
def test_a_fetch_that_is_tried_again_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    policy = ConsumerPolicy(steps=ConsumerSteps(fetch=FetchPolicy(RetryPolicy(2))))
    Refusing().consume_transactions(Batches(OSError("no route to host")), policy)
    assert caplog.messages == ["attempt 1 of 2 to fetch failed: OSError: no route to host"]


@pytest.mark.clause("E-20")
@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (
            None,
            "returned NoneType instead of a list of transactions; if there is nothing to return, return an empty",
        ),
        (numbers(0).__iter__(), "returned list_iterator instead of a list of transactions"),
        (["n1"], "returned a list that contains str instead of Transaction"),
        (numbers(0, 2, 4), "returned 3 transactions, but at most 2 were requested; none was processed"),
    ],
)
def test_a_connector_that_breaks_the_contract_is_told_how(batch: Any, message: str) -> None:
    with pytest.raises(FetchException, match=message):
        Refusing().consume_transactions(Batches(batch), batches_of(2))


@pytest.mark.clause("E-20")
def test_the_batch_is_not_modified() -> None:
    batch = numbers(0, 1, 2)
    before = list(batch)
    Refusing().consume_transactions(Batches(batch), batches_of(3))
    assert batch == before
    assert all(one is other for one, other in zip(batch, before, strict=True))


@pytest.mark.clause("E-29")
def test_a_settle_that_fails_raises_with_its_cause_and_the_report() -> None:
    connector = Settled(numbers(0, 2, 4, 6, 8))
    connector.error = OSError("gone away")
    with pytest.raises(SettleException) as raised:
        Refusing().consume_transactions(connector, batches_of(5))
    assert raised.value.__cause__ is connector.error
    report = raised.value.report
    assert report is not None
    assert (report.fetched, report.processed, report.unsettled) == (5, 5, 5)
    assert {outcome.status for outcome in report.outcomes} == {OutcomeStatus.UNSETTLED}
    assert [outcome.result for outcome in report.outcomes] == [0, 2, 4, 6, 8]
    assert "could not settle" in str(raised.value)
    assert "OSError: gone away" in str(raised.value)


@pytest.mark.clause("E-29")
def test_what_on_outcome_raises_is_raised_with_the_account_as_a_note() -> None:
    def fail(outcome: Outcome) -> None:
        raise LookupError("where to?")

    with pytest.raises(LookupError) as raised:
        Refusing().consume_transactions(Batches(numbers(0)), batches_of(1), on_outcome=fail)
    assert raised.value.__notes__ == [
        "the consume loop ended with it: error: 1 fetched, 1 succeeded, 0 failed, 0 unsettled"
    ]


class Endless(Batches):
    """A connector that always has one more transaction."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched = 0

    def fetch_transactions(self, batch_size: int, **extra: Any) -> Any:
        self.fetched += 1
        return numbers(2 * self.fetched)


@pytest.mark.clause("E-36")
def test_stop_may_come_from_any_thread_and_ends_every_loop_of_the_task() -> None:
    task = Refusing()
    begun = threading.Barrier(3, timeout=30)
    reports = []

    class Meeting(Endless):
        def fetch_transactions(self, batch_size: int, **extra: Any) -> Any:
            if self.fetched == 5:
                begun.wait()
            return super().fetch_transactions(batch_size)

    def consume() -> None:
        reports.append(task.consume_transactions(Meeting(), batches_of(1)))

    threads = [threading.Thread(target=consume) for _ in range(2)]
    for thread in threads:
        thread.start()
    begun.wait()
    task.stop()
    for thread in threads:
        thread.join(30)
    assert [report.stop_reason for report in reports] == [StopReason.STOPPED] * 2
    assert all(report.fetched == report.succeeded + report.unsettled for report in reports)


@on_both
@pytest.mark.clause("E-36")
def test_a_stop_before_the_loop_counts_for_the_next_one_only(variant: str) -> None:
    """It may come before a thread or an asyncio task has taken its first step."""
    engine = Engine(variant)
    task = engine.task()
    task.stop()
    task.stop()
    report = engine.consume(task, numbers(1), batches_of(1))
    assert (report.stop_reason, report.fetched) == (StopReason.STOPPED, 0)
    report = engine.consume(task, numbers(1), batches_of(1))
    assert (report.stop_reason, report.succeeded) == (StopReason.DRAINED, 1)


@on_both
@pytest.mark.clause("E-36")
def test_a_stop_of_a_running_loop_does_not_count_for_the_next_one(variant: str) -> None:
    engine = Engine(variant)
    task = engine.task(lambda transaction: task.stop())
    for _ in range(2):
        report = engine.consume(task, numbers(1, 2), batches_of(1))
        assert (report.stop_reason, report.succeeded) == (StopReason.STOPPED, 1)


@pytest.mark.clause("E-36")
def test_a_stop_at_the_very_moment_of_the_beginning_is_not_lost() -> None:
    """The loop ends by it, whether it was registered or not; and if it was, the next one does not."""
    for _ in range(300):
        task, begun = Refusing(), threading.Barrier(2, timeout=30)

        def stop() -> None:
            begun.wait()  # noqa: B023
            task.stop()  # noqa: B023

        stopper = threading.Thread(target=stop)
        stopper.start()
        begun.wait()
        report = task.consume_transactions(Endless(), batches_of(1))
        stopper.join()
        assert report.stop_reason is StopReason.STOPPED
        assert task.consume_transactions(Batches(), batches_of(1)).stop_reason is StopReason.DRAINED


@on_both
@pytest.mark.clause("E-36")
@pytest.mark.parametrize("when", ["before", "while"])
def test_a_signal_of_the_caller_stops_it_whenever_it_is_set(variant: str, when: str) -> None:
    engine, stop, processed = Engine(variant), Signal(), list[str]()

    def process(transaction: Transaction) -> None:
        processed.append(transaction.id)
        stop.set()

    task = engine.task(process)
    if when == "before":
        stop.set()
    report = engine.consume(task, numbers(1, 2, 3), batches_of(3), stop=stop)
    assert report.stop_reason is StopReason.STOPPED
    assert len(processed) == report.succeeded == (0 if when == "before" else 1)
    stop.clear()
    assert engine.consume(task, numbers(1), batches_of(1)).succeeded == 1  # the last loop has forgotten it


@on_both
def test_what_is_no_signal_is_refused(variant: str) -> None:
    engine = Engine(variant)
    with pytest.raises(TaskConfigError, match=r"stop must be a conquiet\.flow\.Signal, not Event"):
        engine.consume(engine.task(), (), stop=threading.Event())
