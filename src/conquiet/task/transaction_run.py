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

from conquiet.clock import utc_text
from conquiet.flow import Flow
from conquiet.observe import SafeLogger
from conquiet.redaction import annotate
from conquiet.task.attempts import Attempts, Step
from conquiet.task.exceptions import ExceptionCategory, TransactionException
from conquiet.task.failures import copy_for, is_a, presentable, text_of, told_to, traceback_of, type_name
from conquiet.task.outcome import Outcome, OutcomeStatus
from conquiet.task.transaction import Transaction

if TYPE_CHECKING:
    from conquiet.task.lifecycle import Lifecycle

__all__ = ["TransactionRun"]

_log = SafeLogger("conquiet.engine")


class TransactionRun(Attempts):
    """One transaction: its context, its deadline, and its attempts."""

    __slots__ = ("_began", "_cycle", "_in_loop", "_is_cut_off", "_is_out_of_time", "transaction")

    def __init__(
        self, cycle: Lifecycle, transaction: Transaction, context: Context, *, in_loop: bool
    ) -> None:
        timeout = cycle.timeout
        deadline = None if timeout is None else cycle.clock.monotonic() + timeout
        super().__init__(cycle.tracing, cycle.clock, context, deadline)
        if in_loop:
            # A task that calls sys.exit() must not end the others. Outside a loop its caller may be the main thread, where a
            # signal handler may have raised it.
            self._failures = (*self._failures, SystemExit)
        self._cycle = cycle
        self._in_loop = in_loop
        self._is_cut_off = False
        self._is_out_of_time = False
        self._began = 0.0
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
        self._began = self._clock.monotonic()
        if is_told := _log.isEnabledFor(logging.INFO):
            self._log_started()
        try:
            result = yield from self.attempt(cycle.process, transaction)
            if not cycle.succeeds_silently or self.is_over():
                yield from self.attempt(cycle.success, transaction, result)
        except TransactionException as failure:
            return (yield from self._handled(failure))
        if is_told:
            self._log_succeeded()
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
        handled, besides = True, ""
        try:
            yield from self.attempt(self._cycle.exception, self.transaction, failure)
        except TransactionException as final:
            final = copy_for(self.transaction.id, final)
            before = f"while the exception handler handled: {failure.category}: {text_of(failure)}"
            annotate(final, before)
            failure, handled, besides = final, False, f" ({self._tracing.redact(before)})"
        if _log.isEnabledFor(logging.ERROR):
            text = self._tracing.redact(text_of(failure))
            _log.record(
                logging.ERROR,
                "transaction %s: failed with %s at attempt %d: %s%s",
                (self.transaction.id, failure.category, self.counted, text, besides),
                self._fields("failed") | _about(failure, text),
                traceback_of(failure, self._tracing.redact),
            )
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

    def _goes_on(self, step: Step) -> bool:
        """Its work is done: a success handler runs to its end, for which the loop waits half a second after a cut-off."""
        goes_on = self._in_loop and step is self._cycle.success and not self._is_cut_off
        self._is_cut_off = True
        return goes_on

    def _out_of_time(self, step: Step, cause: BaseException | None = None) -> TransactionException:
        self._is_out_of_time = True
        what = f"was cut off: the transaction ran past its transaction_timeout of {self._cycle.timeout:g} s"
        return self._failed(step, what, ExceptionCategory.TIMEOUT, cause)

    def _failure(
        self, error: BaseException, step: Step, attempts: int, ran_past: float | None
    ) -> TransactionException:
        if ran_past is not None:
            what = f"ran past its limit of {ran_past:g} s (attempt {attempts} of {step.retry.max_attempts})"
            return self._failed(step, what, ExceptionCategory.TIMEOUT, error)
        if is_a(error, TransactionException):
            return told_to(self.transaction.id, error)  # type: ignore[arg-type]
        category = ExceptionCategory.TIMEOUT if is_a(error, TimeoutError) else ExceptionCategory.SYSTEM
        what = f"raised {type(error).__name__}: {self._tracing.redact(text_of(error))}"
        return self._failed(step, what, category, error)

    def _failed(
        self, step: Step, what: str, category: ExceptionCategory, cause: BaseException | None
    ) -> TransactionException:
        text = f"transaction {self.transaction.id}: {step.name} {what}"
        shown = None if cause is None else presentable(cause)
        return TransactionException(text, category, self.transaction.id, shown)

    def _is_final(self, failure: BaseException) -> bool:
        return self._is_out_of_time or (
            isinstance(failure, TransactionException) and failure.category is ExceptionCategory.BUSINESS
        )

    def _log_retry(self, step: Step, attempts: int, delay: float, failure: BaseException) -> None:
        if not _log.isEnabledFor(logging.WARNING):
            return
        text = self._tracing.redact(text_of(failure))
        retry_at = utc_text(self._clock.time() + delay)
        about = {"step": step.name, "attempt": attempts, "max_attempts": step.retry.max_attempts}
        _log.record(
            logging.WARNING,
            "transaction %s: attempt %d of %d to %s failed, the next is in %g s: %s",
            (self.transaction.id, attempts, step.retry.max_attempts, step.name, delay, text),
            self._fields("will be retried") | about | _about(failure, text) | {"retry_at": retry_at},
            traceback_of(failure, self._tracing.redact),
        )

    def _log_started(self) -> None:
        if _log.isEnabledFor(logging.DEBUG):
            fields = self._fields("started") | {"duration": None}
            _log.record(logging.DEBUG, "transaction %s: started", (self.transaction.id,), fields)

    def _log_succeeded(self) -> None:
        fields = self._fields("succeeded")
        values = (self.transaction.id, fields["duration"], self.counted)
        _log.record(logging.INFO, "transaction %s: succeeded in %.3f s at attempt %d", values, fields)

    def _fields(self, outcome: str) -> dict[str, Any]:
        """Return the fields of a record. The payload and the connector's metadata are not among them."""
        return {
            "transaction_id": self.transaction.id,
            "task": self._tracing.task_name,
            "attempt": self.counted,
            "duration": self._clock.monotonic() - self._began,
            "outcome": outcome,
        }


def _about(failure: BaseException, text: str) -> dict[str, Any]:
    shown = failure.__cause__ or failure
    return {"error": text, "error_type": type_name(shown), "category": str(getattr(failure, "category", ""))}
