"""Fetching a batch: attempts by policy, and a look at what the connector brought."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextvars import Context
from typing import Any

from conquiet.clock import Clock
from conquiet.errors import AbandonedThreadsError, CallTimeoutError
from conquiet.flow import Call, Flow, Signal, Sleep
from conquiet.task.exceptions import (
    FetchException,
    FetchTimeoutException,
    text_of,
    type_name,
    without_secrets,
)
from conquiet.task.lifecycle import Lifecycle, Step
from conquiet.task.mixins.policies import FetchPolicy
from conquiet.task.transaction import Transaction

__all__ = ["Fetching", "LoopTimeout"]

_log = logging.getLogger("conquiet.task")


class LoopTimeout(Exception):
    """The loop's time is up. Never leaves the loop."""


class Fetching:
    def __init__(
        self,
        cycle: Lifecycle,
        fetch: Callable[..., Any],
        policy: FetchPolicy,
        clock: Clock,
        context: Context,
        deadline: float | None,
        ending: Signal,
    ) -> None:
        self._cycle = cycle
        self._clock = clock
        self._context = context
        self._deadline = deadline
        self._ending = ending
        self._step = Step(
            "fetch", "fetch_transactions", _with(fetch, policy.extra), policy.retry, cycle.task_name
        )

    def batch(self, size: int) -> Flow[Sequence[Transaction] | None]:
        """At most `size` transactions; None if the loop was stopped before there was a batch.

        FetchException if there will be none: `transactions` on it are those that were brought and cannot be run.
        """
        retry, attempt = self._step.retry, 0
        while True:
            try:
                found = yield from self._attempt(size, attempt)
            except (BrokenContract, LoopTimeout, AbandonedThreadsError):
                raise
            except Exception as error:
                attempt += 1
                if attempt >= retry.max_attempts:
                    raise self._failure(error, attempt) from error
                text = self._cycle.redact(text_of(error))
                _log.warning(
                    "attempt %d of %d to fetch failed: %s: %s",
                    attempt,
                    retry.max_attempts,
                    type_name(error),
                    text,
                )
            else:
                return found
            left = self._left()
            delay = retry.delay(attempt - 1)
            if (yield Sleep(delay if left is None else min(delay, left), self._ending)):
                return None
            if left is not None and left <= delay:
                raise LoopTimeout

    def _attempt(self, size: int, attempt: int) -> Flow[Sequence[Transaction]]:
        step, spans = self._step, self._cycle.spans
        timeout, left = step.retry.timeout, self._left()
        loop_ends_first = left is not None and (timeout is None or left <= timeout)
        context = self._context.copy()
        span = None
        if spans is not None:
            span = spans.start(step.span_name, context, {**step.attributes, "conquiet.attempt": attempt})
        try:
            found = yield Call(step.call, context, size, timeout=left if loop_ends_first else timeout)
            return _checked(found, size)
        except Exception as error:
            # Before the loop's time is up, it was the connector's own call that ran past a limit.
            if loop_ends_first and isinstance(error, CallTimeoutError) and self._is_over():
                raise LoopTimeout from error
            failure = without_secrets(error)
            if span is not None:
                self._cycle.failed(span, failure)
        finally:
            if spans is not None:
                spans.end(span)
        raise failure  # out here: in the block it would be raised from the one with secrets

    def _is_over(self) -> bool:
        """Whether the loop's time is up. (A timer may ring a hair before the clock shows its time.)"""
        return self._deadline is not None and self._deadline - self._clock.monotonic() < 1e-6

    def _left(self) -> float | None:
        if self._deadline is None:
            return None
        left = self._deadline - self._clock.monotonic()
        if left <= 0:
            raise LoopTimeout
        return left

    def _failure(self, error: Exception, attempts: int) -> FetchException:
        text = f"fetching failed after {attempts} attempt{'s' * (attempts > 1)}: "
        text += f"{type(error).__name__}: {self._cycle.redact(text_of(error))}"
        return FetchTimeoutException(text) if isinstance(error, TimeoutError) else FetchException(text)


def _with(fetch: Callable[..., Any], extra: Any) -> Callable[..., Any]:
    def fetch_transactions(size: int) -> Any:
        return fetch(size, **extra)

    fetch_transactions.__name__ = getattr(fetch, "__name__", "fetch_transactions")
    return fetch_transactions


class BrokenContract(FetchException):
    """What a connector brought cannot be run. It was delivered, so it is accounted for: as unsettled."""

    def __init__(self, message: str, transactions: Sequence[Transaction]) -> None:
        super().__init__(message)
        self.transactions = transactions


def _checked(found: object, size: int) -> Sequence[Transaction]:
    if not isinstance(found, list | tuple):
        hint = "; with nothing to return, return an empty list" if found is None else ""
        raise BrokenContract(
            f"the connector returned {type(found).__name__} where a list of transactions was expected{hint}",
            (),
        )
    good = [item for item in found if isinstance(item, Transaction)]
    if len(good) < len(found):
        wrong = next(item for item in found if not isinstance(item, Transaction))
        raise BrokenContract(
            f"the connector returned a list with {type(wrong).__name__} in it, where all must be Transaction",
            good,
        )
    if len(found) > size:
        raise BrokenContract(
            f"the connector returned {len(found)} transactions where at most {size} were asked for; none was "
            "processed",
            good,
        )
    return found
