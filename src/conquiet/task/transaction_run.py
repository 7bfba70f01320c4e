"""The run of one transaction through the steps of its task, as a flow.

    process ──► success handler ──────────────► succeeded
       │               │ fails
       └─ fails ───────┴──► exception handler ──► failed

A BUSINESS failure ends its step immediately; after any other failure the step's policy allows further attempts.
"""

from __future__ import annotations

import logging
from contextvars import Context
from typing import TYPE_CHECKING, Any

from conquiet.flow import Cancelled, Flow
from conquiet.task.attempts import Attempts, Step
from conquiet.task.exceptions import ExceptionCategory, TransactionException, text_of, without_secrets
from conquiet.task.outcome import Outcome, OutcomeStatus
from conquiet.task.transaction import Transaction

if TYPE_CHECKING:
    from conquiet.task.lifecycle import Lifecycle

__all__ = ["TransactionRun"]

_log = logging.getLogger("conquiet.task")


class TransactionRun(Attempts):
    """One transaction: its context, its deadline, and its attempts."""

    __slots__ = ("_cycle", "_is_out_of_time", "transaction")

    def __init__(self, cycle: Lifecycle, transaction: Transaction, context: Context) -> None:
        timeout = cycle.timeout
        deadline = None if timeout is None else cycle.clock.monotonic() + timeout
        super().__init__(cycle.tracing, cycle.clock, context, deadline)
        self._cycle = cycle
        self._is_out_of_time = False
        self.transaction = transaction

    def outcome(self) -> Flow[Outcome]:
        """Run it. Raises only a BaseException that is no Exception, a cut-off, or `AbandonedThreadsError`."""
        tracing = self._tracing
        if tracing.spans is None:
            return (yield from self._outcome())
        span = tracing.spans.start("start_processing", self.context, self._cycle.described(self.transaction))
        try:
            outcome = yield from self._outcome()
            if outcome.exception is not None:
                tracing.fail(span, outcome.exception)
            return outcome
        except BaseException as error:
            tracing.fail(span, error)
            raise
        finally:
            tracing.spans.end(span)

    def _outcome(self) -> Flow[Outcome]:
        cycle, transaction = self._cycle, self.transaction
        try:
            result = yield from self.attempt(cycle.process, transaction)
            if not cycle.succeeds_silently or self.is_over():
                yield from self.attempt(cycle.success, transaction, result)
        except TransactionException as failure:
            return (yield from self._handled(failure))
        return Outcome(
            transaction.id,
            OutcomeStatus.SUCCEEDED,
            result,
            attempts=self.counted,
            transaction=transaction,
        )

    def _handled(self, failure: TransactionException) -> Flow[Outcome]:
        if self._is_out_of_time or self.is_over():
            # The exception handler always runs: after the transaction's time limit, only under its own limits.
            self._is_out_of_time, self.deadline = False, None
        handled = True
        try:
            yield from self.attempt(self._cycle.exception, self.transaction, failure)
        except TransactionException as final:
            final.add_note(f"while the exception handler handled: {failure.category}: {failure}")
            failure, handled = final, False
        return Outcome(
            self.transaction.id,
            OutcomeStatus.FAILED,
            exception=failure,
            category=failure.category,
            attempts=self.counted,
            handled=handled,
            transaction=self.transaction,
        )

    def _attributes(self) -> dict[str, Any]:
        return {"conquiet.transaction_id": self.transaction.id}

    def _out_of_time(self, step: Step, cause: BaseException | None = None) -> TransactionException:
        self._is_out_of_time = True
        what = f"was cut off: the transaction ran past its transaction_timeout of {self._cycle.timeout:g} s"
        return self._failed(step, what, ExceptionCategory.TIMEOUT, cause)

    def _failure(
        self, error: BaseException, step: Step, attempts: int, ran_past: float | None
    ) -> TransactionException:
        if isinstance(error, Cancelled) and self._cycle.is_cut_off():
            raise error
        if ran_past is not None:
            what = f"ran past its limit of {ran_past:g} s (attempt {attempts} of {step.retry.max_attempts})"
            return self._failed(step, what, ExceptionCategory.TIMEOUT, error)
        error = without_secrets(error)
        if isinstance(error, TransactionException):
            if error.transaction_id is None:
                error.transaction_id = self.transaction.id
            return error
        category = ExceptionCategory.TIMEOUT if isinstance(error, TimeoutError) else ExceptionCategory.SYSTEM
        what = f"raised {type(error).__name__}: {self._tracing.redact(text_of(error))}"
        return self._failed(step, what, category, error)

    def _failed(
        self, step: Step, what: str, category: ExceptionCategory, cause: BaseException | None
    ) -> TransactionException:
        text = f"transaction {self.transaction.id}: {step.name} {what}"
        return TransactionException(text, category, self.transaction.id, cause)

    def _is_final(self, failure: BaseException) -> bool:
        return self._is_out_of_time or (
            isinstance(failure, TransactionException) and failure.category is ExceptionCategory.BUSINESS
        )

    def _log_retry(self, step: Step, attempts: int, delay: float, failure: BaseException) -> None:
        _log.info(
            "transaction %s: attempt %d of %d to %s failed, the next is in %g s: %s",
            self.transaction.id,
            attempts,
            step.retry.max_attempts,
            step.name,
            delay,
            self._tracing.redact(text_of(failure)),
        )
