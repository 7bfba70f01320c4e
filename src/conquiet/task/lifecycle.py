"""The life of one transaction, as a flow: process, then the success handler or the exception handler.

    process ──► success handler ──────────────► succeeded
       │               │ fails for good
       └─ fails ───────┴──► exception handler ──► failed

Each step is attempted by its own policy; a BUSINESS failure ends its step at once. Every attempt runs in a context
of its own, made of the transaction's: what it sets in context variables is seen by nobody else.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context, copy_context
from typing import Any

from conquiet.clock import Clock
from conquiet.errors import AbandonedThreadsError, CallTimeoutError
from conquiet.flow import Call, Cancelled, Flow, Sleep, call_in
from conquiet.observe.spans import Spans
from conquiet.task.exceptions import ExceptionCategory, TransactionException, text_of, without_secrets
from conquiet.task.mixins.policies import ConsumerPolicy, RetryPolicy
from conquiet.task.outcome import Outcome, OutcomeStatus
from conquiet.task.strict import forbid_io
from conquiet.task.transaction import Transaction

__all__ = ["Lifecycle", "Step"]


class Step:
    """One thing the engine calls, how often it may, and what its spans say."""

    __slots__ = ("attributes", "call", "name", "retry", "span_name", "strict")

    def __init__(
        self,
        name: str,
        span_name: str,
        fn: Callable[..., Any],
        retry: RetryPolicy,
        task_name: str,
        *,
        strict: bool = False,
    ) -> None:
        def call(context: Context, *args: Any) -> Any:
            return call_in(context, fn, *args)

        call.__qualname__ = f"{task_name}.{getattr(fn, '__name__', name)}"  # for messages
        self.call = call
        self.name = name
        self.span_name = span_name
        self.retry = retry
        self.strict = strict
        self.attributes = {
            "conquiet.task": task_name,
            "conquiet.step": name,
            "conquiet.max_attempts": retry.max_attempts,
            "conquiet.backoff": float(retry.backoff),
            "conquiet.backoff_multiplier": float(retry.backoff_multiplier),
            "conquiet.backoff_cap": float(retry.backoff_cap),
        }
        if retry.timeout is not None:
            self.attributes["conquiet.timeout"] = float(retry.timeout)


class Lifecycle:
    """Runs transactions through the steps of one task, under one policy."""

    def __init__(
        self,
        task: Any,
        policy: ConsumerPolicy,
        clock: Clock,
        is_cut_off: Callable[[], bool] = lambda: True,
    ) -> None:
        steps, name = policy.steps, type(task).__name__
        self.task_name = name
        # Whether a cancellation is the loop's doing; otherwise the task's code let one out, which is its failure.
        self.is_cut_off = is_cut_off
        self.spans = Spans.if_wanted("conquiet.task")
        self.redact: Callable[[str], str] = task.redact
        self.clock = clock
        self._timeout = policy.loop.transaction_timeout
        self._shown = tuple(task.span_payload_fields)
        self._process = Step(
            "process",
            "process",
            task.process_transaction,
            steps.process.retry,
            name,
            strict=policy.loop.strict_io,
        )
        self._success = Step(
            "success", "handle_success", task.handle_transaction_success, steps.success.retry, name
        )
        self._exception = Step(
            "exception", "handle_exception", task.handle_transaction_exception, steps.exception.retry, name
        )

    def run(self, transaction: Transaction, context: Context | None = None) -> Flow[Outcome]:
        """The whole life of `transaction`. Only what is no `Exception`, and a cut-off, is raised."""
        life = _Life(self, transaction, context or copy_context(), self._timeout)
        if self.spans is None:
            return (yield from self._live(life))
        span = self.spans.start("start_processing", life.context, self._described(transaction))
        try:
            outcome = yield from self._live(life)
            if outcome.exception is not None:
                self.failed(span, outcome.exception)
            return outcome
        finally:
            span.end()

    def _live(self, life: _Life) -> Flow[Outcome]:
        transaction = life.transaction
        try:
            result = yield from self.attempts(self._process, life, transaction)
            yield from self.attempts(self._success, life, transaction, result)
        except TransactionException as failure:
            return (yield from self._fail(life, failure))
        return Outcome(
            transaction.id,
            OutcomeStatus.SUCCEEDED,
            result,
            attempts=life.attempts,
            transaction=transaction,
        )

    def _fail(self, life: _Life, failure: TransactionException) -> Flow[Outcome]:
        if life.out_of_time:
            life.deadline = None  # the handler still gets its one phase, with its own limits alone
        handled = True
        try:
            yield from self.attempts(self._exception, life, life.transaction, failure)
        except TransactionException as final:
            final.add_note(f"while the exception handler was told of: {failure.category}: {failure}")
            failure, handled = final, False
        return Outcome(
            life.transaction.id,
            OutcomeStatus.FAILED,
            exception=failure,
            category=failure.category,
            attempts=life.attempts,
            handled=handled,
            transaction=life.transaction,
        )

    def attempts(self, step: Step, life: _Life, *args: Any) -> Flow[Any]:
        """Attempt a step until it succeeds; raises how it failed for good, as a TransactionException."""
        retry, attempt = step.retry, 0
        while True:
            if step is self._process:
                life.attempts += 1
            try:
                return (yield from self._attempt(step, life, attempt, args))
            except TransactionException as error:
                failure = error
            attempt += 1
            if (
                failure.category is ExceptionCategory.BUSINESS
                or life.out_of_time
                or attempt >= retry.max_attempts
            ):
                raise failure
            yield from life.pause(retry.delay(attempt - 1), step)

    def _attempt(self, step: Step, life: _Life, attempt: int, args: tuple[Any, ...]) -> Flow[Any]:
        limit, is_last = life.limit(step.retry.timeout)
        if limit is not None and limit <= 0:
            raise life.ran_out(step)
        context = life.context.copy()
        span = self._span(step, life, attempt, context)
        if step.strict:
            forbid_io(context)
        try:
            return (yield Call(step.call, context, *args, timeout=limit))
        except AbandonedThreadsError:
            raise  # no call can be made any more: the loop's business
        except (Exception, Cancelled) as error:  # noqa: BLE001 - a task may raise anything: it is its failure
            failure = self._classified(error, step, life, attempt, limit, is_last)
            if span is not None:
                self.failed(span, failure)
        finally:
            if span is not None:
                span.end()
        raise failure

    def _classified(
        self,
        error: BaseException,
        step: Step,
        life: _Life,
        attempt: int,
        limit: float | None,
        is_last: bool,
    ) -> TransactionException:
        if isinstance(error, Cancelled) and life.is_cut_off():
            raise error
        if isinstance(error, CallTimeoutError) and limit is not None:
            if is_last:
                return life.ran_out(step, error)
            what = f"ran past its limit of {limit:g} s (attempt {attempt + 1} of {step.retry.max_attempts})"
            return life.failure(step, what, ExceptionCategory.TIMEOUT, error)
        without_secrets(error)
        if isinstance(error, TransactionException):
            if error.transaction_id is None:
                error.transaction_id = life.transaction.id
            return error
        category = ExceptionCategory.TIMEOUT if isinstance(error, TimeoutError) else ExceptionCategory.SYSTEM
        return life.failure(
            step, f"raised {type(error).__name__}: {self.redact(text_of(error))}", category, error
        )

    def _span(self, step: Step, life: _Life, attempt: int, context: Context) -> Any:
        if self.spans is None:
            return None
        attributes = {
            **step.attributes,
            "conquiet.attempt": attempt,
            "conquiet.transaction_id": life.transaction.id,
        }
        return self.spans.start(step.span_name, context, attributes)

    def failed(self, span: Any, error: BaseException) -> None:
        """Say on `span` what went wrong, without secrets."""
        cause = error.__cause__ if isinstance(error, TransactionException) and error.__cause__ else error
        assert self.spans is not None
        self.spans.fail(span, type(cause).__qualname__, self.redact(text_of(error)))

    def _described(self, transaction: Transaction) -> dict[str, Any]:
        attributes: dict[str, Any] = {
            "conquiet.task": self.task_name,
            "conquiet.transaction_id": transaction.id,
        }
        if self._shown and isinstance(transaction.payload, dict):
            for name in self._shown:
                value = transaction.payload.get(name)
                if isinstance(value, str | bool | int | float):
                    attributes[f"conquiet.payload.{name}"] = value
        return attributes


class _Life:
    """One transaction on its way: its context, its deadline, and what has been tried."""

    __slots__ = (
        "_clock",
        "_timeout",
        "attempts",
        "context",
        "deadline",
        "is_cut_off",
        "out_of_time",
        "transaction",
    )

    def __init__(
        self, cycle: Lifecycle, transaction: Transaction, context: Context, timeout: float | None
    ) -> None:
        self.transaction = transaction
        self.context = context
        self.attempts = 0
        self.out_of_time = False
        self.is_cut_off = cycle.is_cut_off
        self._clock = cycle.clock
        self._timeout = timeout
        self.deadline = None if timeout is None else self._clock.monotonic() + timeout

    def limit(self, timeout: float | None) -> tuple[float | None, bool]:
        """Seconds for a call that may take `timeout`, and whether the transaction's own time ends with them."""
        if self.deadline is None:
            return timeout, False
        left = self.deadline - self._clock.monotonic()
        return (left, True) if timeout is None or left <= timeout else (timeout, False)

    def pause(self, delay: float, step: Step) -> Flow[None]:
        left, is_last = self.limit(delay)
        if left:
            yield Sleep(left)
        if is_last:
            raise self.ran_out(step)

    def ran_out(self, step: Step, cause: BaseException | None = None) -> TransactionException:
        self.out_of_time = True
        what = f"was cut off: the transaction ran past its transaction_timeout of {self._timeout:g} s"
        return self.failure(step, what, ExceptionCategory.TIMEOUT, cause)

    def failure(
        self, step: Step, what: str, category: ExceptionCategory, cause: BaseException | None
    ) -> TransactionException:
        return TransactionException(
            f"transaction {self.transaction.id}: {step.name} {what}", category, self.transaction.id, cause
        )
