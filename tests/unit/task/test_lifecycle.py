"""The life of one transaction: what handlers get and what is returned, object by object."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from conquiet.errors import CallTimeoutError
from conquiet.task import ConsumerTask, OutcomeStatus, Transaction
from conquiet.task.exceptions import ExceptionCategory, TransactionException
from conquiet.task.lifecycle import Lifecycle
from conquiet.task.mixins.policies import (
    ConsumerLoopPolicy,
    ConsumerPolicy,
    ConsumerSteps,
    ExceptionPolicy,
    ProcessPolicy,
    RetryPolicy,
)
from conquiet.testing import VirtualDriver

TX = Transaction("tx-1", {"amount": 3})


class Told(ConsumerTask):
    """Raises the given errors in turn, and records what its handlers get."""

    def __init__(self, *errors: BaseException) -> None:
        self.errors = list(errors)
        self.handler_error: BaseException | None = None
        self.told: list[Any] = []

    def process_transaction(self, transaction: Transaction) -> Any:
        if self.errors:
            raise self.errors.pop(0)
        return transaction

    def handle_transaction_success(self, transaction: Transaction, result: Any) -> None:
        self.told.append((transaction, result))

    def handle_transaction_exception(self, transaction: Transaction, exception: Any) -> None:
        self.told.append((transaction, exception))
        if self.handler_error is not None:
            raise self.handler_error


def attempts(count: int) -> ConsumerPolicy:
    return ConsumerPolicy(steps=ConsumerSteps(process=ProcessPolicy(RetryPolicy(count))))


@pytest.mark.clause("E-02")
def test_the_success_handler_gets_the_very_transaction_and_value() -> None:
    task = Told()
    outcome = task.start_processing(TX)
    ((transaction, result),) = task.told
    assert transaction is TX
    assert result is TX
    assert (outcome.status, outcome.result, outcome.transaction) == (OutcomeStatus.SUCCEEDED, TX, TX)
    assert (outcome.exception, outcome.category, outcome.handled) == (None, None, False)


@pytest.mark.clause("E-03", "E-08")
@pytest.mark.parametrize("known", [None, "tx-1"])
def test_the_exception_handler_gets_the_exception_that_was_raised_with_the_id(known: str | None) -> None:
    """The very object if it has the id; otherwise a copy, because others may get the same object."""
    error = TransactionException("no funds", ExceptionCategory.BUSINESS, known)
    task = Told(error)
    outcome = task.start_processing(TX, attempts(5))
    ((transaction, told),) = task.told
    assert transaction is TX
    assert (told is error) == (known is not None)
    assert (str(told), told.transaction_id, told.category) == (
        "no funds",
        "tx-1",
        ExceptionCategory.BUSINESS,
    )
    assert told.__traceback__ is not None
    assert error.transaction_id == known
    assert outcome.exception is told
    assert outcome.category is ExceptionCategory.BUSINESS
    assert outcome.handled


@pytest.mark.clause("E-05", "E-29")
def test_a_foreign_exception_is_wrapped_with_its_cause_and_says_where_it_came_from() -> None:
    error = KeyError("colour")
    outcome = Told(error).start_processing(TX)
    failure = outcome.exception
    assert isinstance(failure, TransactionException)
    assert failure.category is ExceptionCategory.SYSTEM
    assert failure.cause is error
    assert failure.transaction_id == "tx-1"
    assert str(failure) == "transaction tx-1: process raised KeyError: 'colour'"


@pytest.mark.clause("E-05")
@pytest.mark.parametrize("error", [StopIteration("done"), ExceptionGroup("two", [ValueError(), KeyError()])])
def test_exceptions_that_mean_something_to_generators_and_groups_are_failures_too(error: Exception) -> None:
    outcome = Told(error).start_processing(TX)
    assert isinstance(outcome.exception, TransactionException)
    assert outcome.exception.cause is error
    assert outcome.category is ExceptionCategory.SYSTEM


@pytest.mark.clause("E-05", "E-18")
def test_the_time_limit_of_an_inner_call_is_not_the_steps() -> None:
    error = CallTimeoutError("the bank did not answer")
    policy = ConsumerPolicy(steps=ConsumerSteps(process=ProcessPolicy(RetryPolicy(timeout=60.0))))
    outcome = Told(error).start_processing(TX, policy)
    assert outcome.category is ExceptionCategory.TIMEOUT
    assert str(outcome.exception) == (
        "transaction tx-1: process raised CallTimeoutError: the bank did not answer"
    )


@pytest.mark.clause("E-29")
def test_a_failure_that_is_tried_again_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "conquiet.engine")
    Told(ValueError("no such colour")).start_processing(TX, attempts(2))
    assert caplog.messages == [
        "transaction tx-1: attempt 1 of 2 to process failed, the next is in 0 s: "
        "transaction tx-1: process raised ValueError: no such colour"
    ]


@pytest.mark.clause("E-29")
def test_the_last_failure_is_the_one_that_counts() -> None:
    task = Told(ValueError("first"), ValueError("second"), ValueError("third"))
    outcome = task.start_processing(TX, attempts(3))
    assert "third" in str(outcome.exception)
    assert outcome.attempts == 3


@pytest.mark.clause("E-07", "E-29")
def test_a_failure_of_the_exception_handler_is_returned_with_what_it_was_told_of() -> None:
    task = Told(TransactionException("no funds", ExceptionCategory.BUSINESS))
    task.handler_error = OSError("disk full")
    outcome = task.start_processing(TX)
    failure = outcome.exception
    assert isinstance(failure, TransactionException)
    assert failure.cause is task.handler_error
    assert failure.category is outcome.category is ExceptionCategory.SYSTEM
    assert not outcome.handled
    assert failure.__notes__ == ["while the exception handler handled: BUSINESS: no funds"]


@pytest.mark.clause("E-07", "E-35")
def test_an_exception_handler_that_raises_what_it_was_told_is_not_retried_if_that_was_business() -> None:
    error = TransactionException("no funds", ExceptionCategory.BUSINESS)
    task = Told(error)
    task.handler_error = error
    policy = ConsumerPolicy(steps=ConsumerSteps(exception=ExceptionPolicy(RetryPolicy(4))))
    outcome = task.start_processing(TX, policy)
    assert len(task.told) == 1
    assert str(outcome.exception) == "no funds"
    assert outcome.category is ExceptionCategory.BUSINESS
    assert not hasattr(error, "__notes__")
    assert not outcome.handled


class Blocking(Told):
    """Blocks without yielding: no limit can interrupt it, least of all on asyncio."""

    def __init__(self, driver: VirtualDriver, seconds: float, *errors: BaseException) -> None:
        super().__init__(*errors)
        self.driver = driver
        self.seconds = seconds

    def process_transaction(self, transaction: Transaction) -> Any:
        self.driver.clock.advance(self.seconds)
        return super().process_transaction(transaction)


def live(task: Blocking, policy: ConsumerPolicy) -> Any:
    return task.driver.run(Lifecycle(task, policy, task.driver.clock).run(TX))


TEN_SECONDS = ConsumerPolicy(ConsumerLoopPolicy(transaction_timeout=10.0))


@pytest.mark.clause("E-08", "E-15")
def test_a_failure_that_comes_after_the_transactions_time_still_gets_its_handler() -> None:
    error = TransactionException("no funds", ExceptionCategory.BUSINESS)
    task = Blocking(VirtualDriver(), 11.0, error)
    outcome = live(task, TEN_SECONDS)
    ((_, told),) = task.told
    assert str(told) == "no funds"
    assert outcome.handled
    assert outcome.category is ExceptionCategory.BUSINESS


@pytest.mark.clause("E-08", "E-15")
def test_a_value_that_comes_after_the_transactions_time_is_too_late() -> None:
    task = Blocking(VirtualDriver(), 11.0)
    outcome = live(task, TEN_SECONDS)
    ((_, told),) = task.told
    assert isinstance(told, TransactionException)
    assert told.category is ExceptionCategory.TIMEOUT
    assert str(told) == (
        "transaction tx-1: success was cut off: the transaction ran past its transaction_timeout of 10 s"
    )
    assert outcome.category is ExceptionCategory.TIMEOUT
    assert outcome.handled


@pytest.mark.clause("E-15")
def test_a_value_that_comes_too_late_is_so_for_a_task_without_handlers_too() -> None:
    driver = VirtualDriver()

    class Bare(ConsumerTask):
        def process_transaction(self, transaction: Transaction) -> Any:
            driver.clock.advance(11.0)

    outcome = driver.run(Lifecycle(Bare(), TEN_SECONDS, driver.clock).run(TX))
    assert (outcome.status, outcome.category) == (OutcomeStatus.FAILED, ExceptionCategory.TIMEOUT)


@pytest.mark.clause("E-15")
def test_a_transactions_time_that_ends_in_a_pause_tells_what_was_about_to_be_tried_again() -> None:
    error = ValueError("busy")
    task = Blocking(VirtualDriver(), 6.0, error)
    policy = ConsumerPolicy(
        ConsumerLoopPolicy(transaction_timeout=10.0),
        ConsumerSteps(process=ProcessPolicy(RetryPolicy(5, backoff=60.0))),
    )
    outcome = live(task, policy)
    failure = outcome.exception
    assert isinstance(failure, TransactionException)
    assert failure.category is ExceptionCategory.TIMEOUT
    assert isinstance(failure.cause, TransactionException)
    assert failure.cause.cause is error
    assert task.driver.clock.monotonic() == 10.0
