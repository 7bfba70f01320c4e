"""One transaction on its way through the steps: its time, and how it fails."""

from __future__ import annotations

from contextvars import Context

from conquiet.clock import Clock
from conquiet.flow import Flow, Sleep
from conquiet.task.exceptions import ExceptionCategory, TransactionException
from conquiet.task.transaction import Transaction

__all__ = ["Life"]


class Life:
    """One transaction on its way: its context, its deadline, and what has been tried."""

    __slots__ = (
        "_clock",
        "_timeout",
        "attempts",
        "context",
        "deadline",
        "out_of_time",
        "transaction",
    )

    def __init__(
        self, transaction: Transaction, context: Context, clock: Clock, timeout: float | None
    ) -> None:
        self.transaction = transaction
        self.context = context
        self.attempts = 0
        self.out_of_time = False
        self._clock = clock
        self._timeout = timeout
        self.deadline = None if timeout is None else clock.monotonic() + timeout

    def limit(self, timeout: float | None) -> tuple[float | None, bool]:
        """Seconds for a call that may take `timeout`, and whether the transaction's own time ends with them."""
        if self.deadline is None:
            return timeout, False
        left = self.deadline - self._clock.monotonic()
        return (left, True) if timeout is None or left <= timeout else (timeout, False)

    def is_over(self) -> bool:
        """Whether the transaction's own time is up. (A timer may ring a hair before the clock shows its time.)"""
        return self.deadline is not None and self.deadline - self._clock.monotonic() < 1e-6

    def allow_last_phase(self) -> None:
        """The exception handler gets its one phase in any case; if time is up, with its own limits alone."""
        if self.out_of_time or self.is_over():
            self.out_of_time, self.deadline = False, None

    def pause(self, delay: float, step: str, failure: TransactionException) -> Flow[None]:
        left, is_last = self.limit(delay)
        if left:
            yield Sleep(left)
        if is_last:
            raise self.ran_out(step, failure)

    def ran_out(self, step: str, cause: BaseException | None = None) -> TransactionException:
        self.out_of_time = True
        what = f"was cut off: the transaction ran past its transaction_timeout of {self._timeout:g} s"
        return self.failure(step, what, ExceptionCategory.TIMEOUT, cause)

    def failure(
        self, step: str, what: str, category: ExceptionCategory, cause: BaseException | None
    ) -> TransactionException:
        return TransactionException(
            f"transaction {self.transaction.id}: {step} {what}", category, self.transaction.id, cause
        )
