"""The lifecycle of transactions in one consumer task: its steps, under one policy."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context, copy_context
from typing import Any, TypeVar

from conquiet.clock import Clock
from conquiet.errors import TaskConfigError
from conquiet.flow import Flow
from conquiet.task.attempts import Step, Tracing
from conquiet.task.exceptions import cut
from conquiet.task.mixins.policies import ConsumerPolicy
from conquiet.task.outcome import Outcome
from conquiet.task.transaction import Transaction
from conquiet.task.transaction_run import TransactionRun

__all__ = ["Lifecycle", "empty"]

Handler = TypeVar("Handler", bound=Callable[..., Any])


def empty(handler: Handler) -> Handler:
    """Mark a handler of a base class as doing nothing."""
    handler.__dict__["is_empty"] = True
    return handler


def is_empty(handler: Callable[..., Any]) -> bool:
    return getattr(handler, "is_empty", False)


class Lifecycle:
    """The common data of all transactions of a consumer task; `begin` creates the run of one of them."""

    def __init__(
        self,
        task: Any,
        policy: ConsumerPolicy,
        clock: Clock,
        is_cut_off: Callable[[], bool] = lambda: False,
    ) -> None:
        steps, name = policy.steps, type(task).__name__
        # Whether a cancellation comes from the loop; otherwise it comes from the task's code and is a failure.
        self.is_cut_off = is_cut_off
        self.tracing = Tracing(task)
        self.clock = clock
        self.timeout = policy.loop.transaction_timeout
        if isinstance(task.span_payload_fields, str):
            raise TaskConfigError(f"{name}.span_payload_fields must be a list of names, not one string")
        self._shown = tuple(task.span_payload_fields)
        self.process = Step(
            "process",
            "process",
            task.process_transaction,
            steps.process.retry,
            name,
            counted=True,
            strict=policy.loop.strict_io,
        )
        self.success = Step(
            "success", "handle_success", task.handle_transaction_success, steps.success.retry, name
        )
        # A success handler that is not overridden is called only for its span.
        self.succeeds_silently = self.tracing.spans is None and is_empty(task.handle_transaction_success)
        self.exception = Step(
            "exception", "handle_exception", task.handle_transaction_exception, steps.exception.retry, name
        )

    def run(self, transaction: Transaction) -> Flow[Outcome]:
        """Take `transaction` through all of its steps, in a copy of the caller's context."""
        return self.begin(transaction, copy_context()).outcome()

    def begin(self, transaction: Transaction, context: Context) -> TransactionRun:
        """Create the run of `transaction`; its time limit starts here."""
        return TransactionRun(self, transaction, context)

    def described(self, transaction: Transaction) -> dict[str, Any]:
        """Return the span attributes of `transaction`: only the payload fields that the task allows."""
        attributes: dict[str, Any] = {
            "conquiet.task": self.tracing.task_name,
            "conquiet.transaction_id": transaction.id,
        }
        if self._shown and isinstance(transaction.payload, dict):
            for name in self._shown:
                value = transaction.payload.get(name)
                if isinstance(value, str | bool | int | float):
                    attributes[f"conquiet.payload.{name}"] = _attribute(value)
        return attributes


def _attribute(value: str | bool | int | float) -> str | bool | int | float:
    """Limit a value to what every exporter can send: short texts, and integers of 64 bits."""
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        value = str(value)
    return cut(value) if isinstance(value, str) else value
