"""The lifecycle of transactions in one consumer task: its steps, under one policy."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextvars import Context, copy_context
from typing import Any, TypeVar

from conquiet.clock import Clock
from conquiet.errors import TaskConfigError
from conquiet.flow import Flow
from conquiet.task.attempts import Step, Tracing
from conquiet.task.failures import cut
from conquiet.task.mixins.policies import ConsumerPolicy
from conquiet.task.outcome import Outcome
from conquiet.task.transaction import Transaction
from conquiet.task.transaction_run import TransactionRun

__all__ = ["Lifecycle", "empty"]

Handler = TypeVar("Handler", bound=Callable[..., Any])


def empty(handler: Handler) -> Handler:
    """Mark a method of a base class as doing nothing."""
    handler.__dict__["is_empty"] = True
    return handler


def is_empty(handler: Callable[..., Any]) -> bool:
    return getattr(handler, "is_empty", False)


class Lifecycle:
    """The common data of all transactions of a consumer task; `begin` creates the run of one of them."""

    def __init__(self, task: Any, policy: ConsumerPolicy, clock: Clock) -> None:
        steps, name = policy.steps, type(task).__name__
        _check_steps(task, name)
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
        return TransactionRun(self, transaction, copy_context(), in_loop=False).outcome()

    def begin(self, transaction: Transaction, context: Context) -> TransactionRun:
        """Create the run of `transaction` in a loop; its time limit starts here."""
        return TransactionRun(self, transaction, context, in_loop=True)

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


def _check_steps(task: Any, name: str) -> None:
    """Refuse steps that would fail, or do nothing, for every transaction."""
    if is_empty(task.process_transaction):
        raise TaskConfigError(f"{name} has no process_transaction: implement it")
    for step in ("process_transaction", "handle_transaction_success", "handle_transaction_exception"):
        method = getattr(task, step)
        if not callable(method):
            raise TaskConfigError(f"{name}.{step} must be callable, not {type(method).__name__}")
        kind = (
            "a generator function"
            if inspect.isgeneratorfunction(method)
            else "an asynchronous generator function"
            if inspect.isasyncgenfunction(method)
            else None
        )
        if kind is not None:
            raise TaskConfigError(f"{name}.{step} is {kind}, whose body would never run: do not yield in it")


def _attribute(value: str | bool | int | float) -> str | bool | int | float:
    """Limit a value to what every exporter can send: short texts, and integers of 64 bits."""
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        value = str(value)
    return cut(value) if isinstance(value, str) else value
