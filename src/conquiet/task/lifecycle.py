"""The life of one transaction, as a flow: process, then the success handler or the exception handler.

    process ──► success handler ──────────────► succeeded
       │               │ fails for good
       └─ fails ───────┴──► exception handler ──► failed

Each step is attempted by its own policy; a BUSINESS failure ends its step at once. Every attempt runs in a context
of its own, made of the transaction's: what it sets in context variables is seen by nobody else.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from contextvars import Context, copy_context
from typing import Any, TypeVar

from conquiet.clock import Clock
from conquiet.errors import AbandonedThreadsError, CallTimeoutError, TaskConfigError
from conquiet.flow import Call, Cancelled, Flow, call_in
from conquiet.observe import Spans
from conquiet.task.exceptions import (
    ExceptionCategory,
    TransactionException,
    cut,
    guarded,
    text_of,
    type_name,
    without_secrets,
)
from conquiet.task.life import Life
from conquiet.task.mixins.policies import ConsumerPolicy, RetryPolicy
from conquiet.task.outcome import Outcome, OutcomeStatus
from conquiet.task.strict import forbid_io
from conquiet.task.transaction import Transaction

__all__ = ["Lifecycle", "Step", "empty"]

_log = logging.getLogger("conquiet.task")

Handler = TypeVar("Handler", bound=Callable[..., Any])


def empty(handler: Handler) -> Handler:
    """Marks a handler of a base class that does nothing."""
    handler.__dict__["is_empty"] = True
    return handler


def is_empty(handler: Callable[..., Any]) -> bool:
    return getattr(handler, "is_empty", False)


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
        is_cut_off: Callable[[], bool] = lambda: False,
    ) -> None:
        steps, name = policy.steps, type(task).__name__
        self.task_name = name
        # Whether a cancellation is the loop's doing; otherwise the task's code let one out, which is its failure.
        self.is_cut_off = is_cut_off
        self.spans = Spans.if_wanted("conquiet.task", task.tracer_provider)
        self.redact = guarded(task.redact)
        self.clock = clock
        self._timeout = policy.loop.transaction_timeout
        if isinstance(task.span_payload_fields, str):
            raise TaskConfigError(f"{name}.span_payload_fields must be a list of names, not one string")
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
        # A handler that nobody has written is not called, except for its span.
        self._succeeds_silently = self.spans is None and is_empty(task.handle_transaction_success)
        self._exception = Step(
            "exception", "handle_exception", task.handle_transaction_exception, steps.exception.retry, name
        )

    def run(self, transaction: Transaction) -> Flow[Outcome]:
        """The whole life of `transaction`. Only what is no `Exception`, and a cut-off, is raised."""
        return self.live(self.begin(transaction, copy_context()))

    def begin(self, transaction: Transaction, context: Context) -> Life:
        """The transaction's time runs from here; `live` is what happens in it."""
        return Life(transaction, context, self.clock, self._timeout)

    def live(self, life: Life) -> Flow[Outcome]:
        if self.spans is None:
            return (yield from self._live(life))
        span = self.spans.start("start_processing", life.context, self._described(life.transaction))
        try:
            outcome = yield from self._live(life)
            if outcome.exception is not None:
                self.failed(span, outcome.exception)
            return outcome
        except BaseException as error:
            self.failed(span, error)
            raise
        finally:
            self.spans.end(span)

    def _live(self, life: Life) -> Flow[Outcome]:
        transaction = life.transaction
        try:
            result = yield from self.attempts(self._process, life, transaction)
            if not self._succeeds_silently or (life.deadline is not None and life.is_over()):
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

    def _fail(self, life: Life, failure: TransactionException) -> Flow[Outcome]:
        life.allow_last_phase()
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

    def attempts(self, step: Step, life: Life, *args: Any) -> Flow[Any]:
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
            delay = retry.delay(attempt - 1)
            _log.info(
                "transaction %s: attempt %d of %d to %s failed, the next is in %g s: %s",
                life.transaction.id,
                attempt,
                retry.max_attempts,
                step.name,
                delay,
                self.redact(text_of(failure)),
            )
            yield from life.pause(delay, step.name, failure)

    def _attempt(self, step: Step, life: Life, attempt: int, args: tuple[Any, ...]) -> Flow[Any]:
        limit, is_last = life.limit(step.retry.timeout)
        if limit is not None and limit <= 0:
            raise life.ran_out(step.name)
        until = (
            math.inf if limit is None else self.clock.monotonic() + limit - 1e-6
        )  # a timer may ring a hair early
        context = life.context.copy()
        span = self._span(step, life, attempt, context)
        if step.strict:
            forbid_io(context)
        try:
            return (yield Call(step.call, context, *args, timeout=limit))
        except AbandonedThreadsError:
            raise  # no call can be made any more: the loop's business
        except (Exception, Cancelled) as error:  # noqa: BLE001 - a task may raise anything: it is its failure
            # Before its time was up, it was the task's own call that ran past a limit.
            timed_out = isinstance(error, CallTimeoutError) and self.clock.monotonic() >= until
            failure = self._classified(error, step, life, attempt, limit if timed_out else None, is_last)
            if span is not None:
                self.failed(span, failure)
        except BaseException as error:
            if span is not None:
                self.failed(span, error)
            raise
        finally:
            if self.spans is not None:
                self.spans.end(span)
        raise failure  # out here: in the block it would be raised from one that may hold secrets

    def _classified(
        self,
        error: BaseException,
        step: Step,
        life: Life,
        attempt: int,
        limit: float | None,
        is_last: bool,
    ) -> TransactionException:
        """`limit`: the one it ran past, if it did; `is_last`: that was the transaction's own."""
        if isinstance(error, Cancelled) and self.is_cut_off():
            raise error
        if limit is not None:
            if is_last and life.is_over():  # and not some inner call, which has a limit of its own
                return life.ran_out(step.name, error)
            what = f"ran past its limit of {limit:g} s (attempt {attempt + 1} of {step.retry.max_attempts})"
            return life.failure(step.name, what, ExceptionCategory.TIMEOUT, error)
        error = without_secrets(error)
        if isinstance(error, TransactionException):
            if error.transaction_id is None:
                error.transaction_id = life.transaction.id
            return error
        category = ExceptionCategory.TIMEOUT if isinstance(error, TimeoutError) else ExceptionCategory.SYSTEM
        return life.failure(
            step.name, f"raised {type(error).__name__}: {self.redact(text_of(error))}", category, error
        )

    def _span(self, step: Step, life: Life, attempt: int, context: Context) -> Any:
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
        assert self.spans is not None
        wrapped = isinstance(error, TransactionException) and error.__cause__
        known = {"category": str(error.category)} if isinstance(error, TransactionException) else {}
        text = cut(self.redact(text_of(error)))
        self.spans.fail(span, type_name(wrapped or error), text, **known)

    def _described(self, transaction: Transaction) -> dict[str, Any]:
        attributes: dict[str, Any] = {
            "conquiet.task": self.task_name,
            "conquiet.transaction_id": transaction.id,
        }
        if self._shown and isinstance(transaction.payload, dict):
            for name in self._shown:
                value = transaction.payload.get(name)
                if isinstance(value, str | bool | int | float):
                    attributes[f"conquiet.payload.{name}"] = _attribute(value)
        return attributes


def _attribute(value: str | bool | int | float) -> str | bool | int | float:
    """What every exporter can send: short texts, and integers of 64 bits."""
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        value = str(value)
    return cut(value) if isinstance(value, str) else value
