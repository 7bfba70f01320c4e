"""Fetches a batch from the connector, with attempts by policy, and checks it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import Context
from typing import Any

from conquiet.clock import Clock
from conquiet.flow import Flow, Signal
from conquiet.observe import SafeLogger
from conquiet.task.attempts import Attempts, Step, Tracing
from conquiet.task.exceptions import (
    ConnectorContractException,
    FetchException,
    FetchTimeoutException,
    RedactedError,
)
from conquiet.task.failures import is_a, presentable, text_of, type_name
from conquiet.task.mixins.policies import FetchPolicy
from conquiet.task.transaction import Transaction

__all__ = ["Fetch", "LoopTimeout"]

_log = SafeLogger("conquiet.engine")


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
        late: Callable[[Any], None],
    ) -> None:
        super().__init__(tracing, clock, context, deadline, ending)
        self._step = Step(
            "fetch",
            "fetch_transactions",
            _with(fetch, policy.extra),
            policy.retry,
            tracing.task_name,
            late=late,
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
        ids: list[object] = [item.id for item in good]
        if not all(isinstance(name, str) for name in ids):
            self.unusable = good
            wrong_id = next(name for name in ids if not isinstance(name, str))
            raise ConnectorContractException(
                f"the connector returned a transaction whose id is of type {type(wrong_id).__name__}; an id is a text, "
                "such as str(row_number). None of the batch was processed"
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
        return presentable(error)

    def _is_final(self, failure: BaseException) -> bool:
        return is_a(failure, ConnectorContractException)

    def _for_good(self, failure: BaseException, attempts: int) -> BaseException:
        if self._is_final(failure):
            return failure
        text = f"fetching failed after {attempts} attempt{'s' * (attempts > 1)}: "
        text += f"{type(_original(failure)).__name__}: {self._tracing.redact(text_of(_original(failure)))}"
        is_timeout = is_a(_original(failure), TimeoutError)
        final = FetchTimeoutException(text) if is_timeout else FetchException(text)
        final.__cause__ = failure
        return final

    def _log_retry(self, step: Step, attempts: int, delay: float, failure: BaseException) -> None:
        _log.warning(
            "attempt %d of %d to fetch failed: %s: %s",
            attempts,
            step.retry.max_attempts,
            type_name(failure),
            self._tracing.redact(text_of(_original(failure))),
        )


def _original(failure: BaseException) -> BaseException:
    """Return the exception that the connector raised, of which `failure` may be a stand-in."""
    return (failure.original or failure) if isinstance(failure, RedactedError) else failure


def _with(fetch: Callable[..., Any], extra: Any) -> Callable[..., Any]:
    def fetch_transactions(size: int) -> Any:
        return fetch(size, **extra)

    fetch_transactions.__name__ = getattr(fetch, "__name__", "fetch_transactions")
    return fetch_transactions
