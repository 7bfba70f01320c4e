"""Attempts at a step: each in its own context and span, under a time limit, repeated by the step's policy.

The engine attempts two kinds of steps: fetching a batch (`fetch.py`), and the steps of a transaction
(`transaction_run.py`). This module has the common logic; they define what a failure means.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextvars import Context
from typing import Any

from conquiet.clock import Clock
from conquiet.errors import AbandonedThreadsError, CallTimeoutError
from conquiet.flow import Call, Cancelled, Flow, Signal, Sleep, call_in
from conquiet.observe import Spans
from conquiet.task.exceptions import TransactionException
from conquiet.task.failures import cut, guarded, is_a, text_of, type_name
from conquiet.task.mixins.policies import RetryPolicy
from conquiet.task.strict import forbid_io

__all__ = ["Attempts", "Step", "Tracing"]

_TIMER_SLACK = 1e-6  # seconds by which a timer may fire before the clock shows its time


class Step:
    """One method that the engine calls, its retry policy, and its span attributes."""

    __slots__ = ("attributes", "call", "counted", "late", "name", "retry", "span_name", "strict")

    def __init__(
        self,
        name: str,
        span_name: str,
        fn: Callable[..., Any],
        retry: RetryPolicy,
        task_name: str,
        *,
        counted: bool = False,
        strict: bool = False,
        late: Callable[[Any], None] | None = None,
    ) -> None:
        def call(attempts: Attempts, context: Context, *args: Any) -> Any:
            attempts.begun = True
            return call_in(context, fn, *args)

        call.__qualname__ = f"{task_name}.{getattr(fn, '__name__', name)}"  # for messages
        self.call = call
        self.name = name
        self.span_name = span_name
        self.retry = retry
        self.counted = counted  # in `Attempts.counted`
        self.strict = strict
        self.late = late  # gets the value that arrives after the time limit
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


class Tracing:
    """The spans of one consumer task, if a tracer provider exists, and texts without secrets."""

    __slots__ = ("redact", "spans", "task_name")

    def __init__(self, task: Any) -> None:
        self.task_name = type(task).__name__
        self.spans = Spans.if_wanted("conquiet.task", task.tracer_provider)
        self.redact = guarded(task.redact)

    def fail(self, span: Any, error: BaseException) -> None:
        """Record the error on `span`, without secrets."""
        if self.spans is None or span is None:
            return
        shown, known = error, {}
        if is_a(error, TransactionException):
            shown, known = error.__cause__ or error, {"category": str(error.category)}  # type: ignore[attr-defined]
        self.spans.fail(span, type_name(shown), cut(self.redact(text_of(error))), **known)


class Attempts:
    """Attempts steps on behalf of one transaction, or of one loop that fetches, until its deadline."""

    __slots__ = ("_clock", "_failures", "_tracing", "_wake", "begun", "context", "counted", "deadline")

    def __init__(
        self, tracing: Tracing, clock: Clock, context: Context, deadline: float | None, *wake: Signal
    ) -> None:
        self._tracing = tracing
        self._clock = clock
        self._wake = wake  # signals that end the wait between two attempts, and with it the attempts
        self.context = context
        self.deadline = deadline
        self._failures: tuple[type[BaseException], ...] = (
            Exception,
            Cancelled,
        )  # other exceptions end everything
        self.begun = False  # the call of the current attempt
        self.counted = 0  # attempts at the steps that are counted

    def attempt(self, step: Step, *args: Any) -> Flow[Any]:
        """Return the value of `step`, or None if a signal ended the attempts. Raise its final failure."""
        retry, tracing, clock = step.retry, self._tracing, self._clock
        spans = tracing.spans
        attempts = 0
        while True:
            if step.counted:
                self.counted += 1
            limit, is_last = self._limit(retry.timeout)
            if limit is not None and limit <= 0:
                raise self._out_of_time(step)
            until = math.inf if limit is None else clock.monotonic() + limit - _TIMER_SLACK
            context = self.context.copy()
            span = None
            if spans is not None:
                about = {**step.attributes, "conquiet.attempt": attempts, **self._attributes()}
                span = spans.start(step.span_name, context, about)
            if step.strict:
                forbid_io(context)
            attempts += 1
            self.begun = False
            call = Call(step.call, self, context, *args, timeout=limit, late=step.late)
            try:
                return self._checked((yield call), *args)
            except AbandonedThreadsError as error:
                tracing.fail(span, error)
                raise  # no further call with a time limit is possible: the loop ends
            except self._failures as error:
                if is_a(error, Cancelled):
                    if call.interrupted:
                        if not self.begun and self._goes_on(step):
                            attempts -= 1
                            continue
                        tracing.fail(span, error)
                        raise  # we were cancelled; a CancelledError of the user's code is a failure like any other
                    # Who cancels all tasks of an event loop has cancelled the consume loop too, which cuts us off now.
                    yield Sleep(0)
                # A CallTimeoutError before the limit comes from a call inside the step that has its own limit.
                timed_out = is_a(error, CallTimeoutError) and clock.monotonic() >= until
                if timed_out and is_last and self.is_over():
                    failure = self._out_of_time(step, error)
                else:
                    failure = self._failure(error, step, attempts, limit if timed_out else None)
                tracing.fail(span, failure)
            except BaseException as error:
                tracing.fail(span, error)
                raise
            finally:
                if spans is not None:
                    spans.end(span)
            # Outside the except block: raised in it, the failure would have the original error, with any
            # secrets in its text, as its context.
            if attempts >= retry.max_attempts or self._is_final(failure):
                raise self._for_good(failure, attempts)
            delay = retry.delay(attempts - 1)
            self._log_retry(step, attempts, delay, failure)
            left, is_last = self._limit(delay)
            if (left or self._wake) and (yield Sleep(left, *self._wake)):
                return None
            if is_last:
                raise self._out_of_time(step, failure)

    def is_over(self) -> bool:
        """Return whether the deadline has passed."""
        return self.deadline is not None and self.deadline - self._clock.monotonic() < _TIMER_SLACK

    def _limit(self, seconds: float | None) -> tuple[float | None, bool]:
        """Return `seconds`, shortened to the deadline, and whether the deadline shortens it."""
        if self.deadline is None:
            return seconds, False
        left = self.deadline - self._clock.monotonic()
        return (max(left, 0.0), True) if seconds is None or left <= seconds else (seconds, False)

    # -- the meaning of a failure, defined by the two kinds of steps ---------------------------------------------

    def _attributes(self) -> dict[str, Any]:
        """Return span attributes besides the step's own."""
        return {}

    def _checked(self, value: Any, *args: Any) -> Any:
        """Return the value of the step if it is valid. If this raises, the attempt has failed."""
        return value

    def _goes_on(self, step: Step) -> bool:
        """Return whether `step` is attempted although we were cancelled before it began."""
        return False

    def _out_of_time(self, step: Step, cause: BaseException | None = None) -> BaseException:
        """Return the failure at the deadline, or raise it immediately."""
        raise NotImplementedError

    def _failure(
        self, error: BaseException, step: Step, attempts: int, ran_past: float | None
    ) -> BaseException:
        """Return the failure of this attempt; raise other errors. `ran_past` is its time limit, if exceeded."""
        raise NotImplementedError

    def _is_final(self, failure: BaseException) -> bool:
        """Return whether another attempt would be useless."""
        raise NotImplementedError

    def _for_good(self, failure: BaseException, attempts: int) -> BaseException:
        """Return the exception to raise after the last attempt."""
        return failure

    def _log_retry(self, step: Step, attempts: int, delay: float, failure: BaseException) -> None:
        raise NotImplementedError
