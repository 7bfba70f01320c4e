"""Fetches a batch from the connector, with attempts by policy, and checks it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextvars import Context
from typing import Any

from conquiet.clock import Clock
from conquiet.flow import Cancelled, Flow, Signal
from conquiet.task.attempts import Attempts, Step, Tracing
from conquiet.task.exceptions import (
    ConnectorContractException,
    FetchException,
    FetchTimeoutException,
    text_of,
    type_name,
    without_secrets,
)
from conquiet.task.mixins.policies import FetchPolicy
from conquiet.task.transaction import Transaction

__all__ = ["Fetch", "LoopTimeout"]

_log = logging.getLogger("conquiet.task")


class LoopTimeout(Exception):
    """The loop's time is up. Internal to the loop."""


class Fetch(Attempts):
    """Fetches batches for one loop, until the loop's deadline or the signal `ending`."""

    __slots__ = ("_step", "unusable")

    def __init__(
        self,
        tracing: Tracing,
        fetch: Callable[..., Any],
        policy: FetchPolicy,
        clock: Clock,
        context: Context,
        deadline: float | None,
        ending: Signal,
    ) -> None:
        super().__init__(tracing, clock, context, deadline, ending)
        self._step = Step(
            "fetch", "fetch_transactions", _with(fetch, policy.extra), policy.retry, tracing.task_name
        )
        # Transactions of a batch that breaks the contract: they cannot be run, and are reported as unsettled.
        self.unusable: Sequence[Transaction] = ()

    def batch(self, size: int) -> Flow[Sequence[Transaction] | None]:
        """Return at most `size` transactions; None if the loop was stopped first."""
        return self.attempt(self._step, size)

    def _checked(self, value: Any, *args: Any) -> Any:
        (size,) = args
        if not isinstance(value, list | tuple):
            hint = "; if there is nothing to return, return an empty list" if value is None else ""
            raise ConnectorContractException(
                f"the connector returned {type(value).__name__} instead of a list of transactions{hint}"
            )
        good = [item for item in value if isinstance(item, Transaction)]
        if len(good) < len(value):
            self.unusable = good
            wrong = next(item for item in value if not isinstance(item, Transaction))
            raise ConnectorContractException(
                f"the connector returned a list that contains {type(wrong).__name__} instead of Transaction"
            )
        if len(value) > size:
            self.unusable = good
            raise ConnectorContractException(
                f"the connector returned {len(value)} transactions, but at most {size} were requested; none was "
                "processed"
            )
        return value

    def _out_of_time(self, step: Step, cause: BaseException | None = None) -> BaseException:
        raise LoopTimeout from cause

    def _failure(
        self, error: BaseException, step: Step, attempts: int, ran_past: float | None
    ) -> BaseException:
        if isinstance(error, Cancelled):
            raise error
        return without_secrets(error)

    def _is_final(self, failure: BaseException) -> bool:
        return isinstance(failure, ConnectorContractException)

    def _for_good(self, failure: BaseException, attempts: int) -> BaseException:
        if isinstance(failure, ConnectorContractException):
            return failure
        text = f"fetching failed after {attempts} attempt{'s' * (attempts > 1)}: "
        text += f"{type(failure).__name__}: {self._tracing.redact(text_of(failure))}"
        final = FetchTimeoutException(text) if isinstance(failure, TimeoutError) else FetchException(text)
        final.__cause__ = failure
        return final

    def _log_retry(self, step: Step, attempts: int, delay: float, failure: BaseException) -> None:
        _log.warning(
            "attempt %d of %d to fetch failed: %s: %s",
            attempts,
            step.retry.max_attempts,
            type_name(failure),
            self._tracing.redact(text_of(failure)),
        )


def _with(fetch: Callable[..., Any], extra: Any) -> Callable[..., Any]:
    def fetch_transactions(size: int) -> Any:
        return fetch(size, **extra)

    fetch_transactions.__name__ = getattr(fetch, "__name__", "fetch_transactions")
    return fetch_transactions
