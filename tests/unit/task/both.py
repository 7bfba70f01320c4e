"""One test for both variants of the engine: steps are written once and run as functions or as coroutines."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from typing import Any

import pytest

from conquiet.task import AsyncConsumerTask, ConsumeReport, ConsumerTask, Outcome, Transaction
from conquiet.task.mixins.policies import (
    BatchPolicy,
    ConcurrencyPolicy,
    ConsumerLoopPolicy,
    ConsumerPolicy,
    ConsumerSteps,
    ExceptionPolicy,
    FetchPolicy,
    ProcessPolicy,
    RetryPolicy,
    SuccessPolicy,
)

VARIANTS = ("threads", "asyncio")
on_both = pytest.mark.parametrize("variant", VARIANTS)

ONCE = RetryPolicy()

Step = Callable[..., Any]


def nothing(*args: Any) -> None:
    """A step that does nothing."""


class Engine:
    """One variant of the engine.

    A step is a function, or a generator function that yields what it waits for: seconds, or a `threading.Event`.
    """

    def __init__(self, variant: str) -> None:
        self.variant = variant

    def task(
        self,
        process: Step = nothing,
        success: Step = nothing,
        exception: Step = nothing,
        name: str = "Task",
        **attributes: Any,
    ) -> Any:
        make, base = (
            (_on_thread, ConsumerTask) if self.variant == "threads" else (_on_asyncio, AsyncConsumerTask)
        )
        steps = {
            "process_transaction": make(process),
            "handle_transaction_success": make(success),
            "handle_transaction_exception": make(exception),
        }
        return type(name, (base,), {**steps, **attributes})()

    def consume(
        self, task: Any, source: Any, policy: ConsumerPolicy | None = None, **options: Any
    ) -> ConsumeReport:
        """Run the loop on transactions, or on a connector whose `fetch` and optional `settle` are steps."""
        if not hasattr(source, "fetch"):
            source = Batches(source)
        connector = _Connector(source, self.variant)
        call = task.consume_transactions(connector, policy or ConsumerPolicy(), **options)
        return call if self.variant == "threads" else asyncio.run(call)

    def live(self, task: Any, transaction: Transaction, policy: ConsumerPolicy | None = None) -> Outcome:
        """Process one transaction without a loop."""
        call = task.start_processing(transaction, policy or ConsumerPolicy())
        return call if self.variant == "threads" else asyncio.run(call)


class Batches:
    """A connector that hands out transactions as they are asked for."""

    def __init__(self, transactions: Iterable[Transaction]) -> None:
        self._left = list(transactions)

    def fetch(self, size: int, **extra: Any) -> list[Transaction]:
        batch, self._left = self._left[:size], self._left[size:]
        return batch


class _Connector:
    def __init__(self, source: Any, variant: str) -> None:
        make = _on_thread if variant == "threads" else _on_asyncio
        suffix = "" if variant == "threads" else "_async"
        setattr(self, f"fetch_transactions{suffix}", _bound(make(source.fetch)))
        if hasattr(source, "settle"):
            setattr(self, f"settle{suffix}", _bound(make(source.settle)))


def _bound(step: Step) -> Step:
    return lambda *args, **extra: step(None, *args, **extra)


def _on_thread(step: Step) -> Step:
    def call(self: Any, *args: Any, **extra: Any) -> Any:
        running = step(*args, **extra)
        if not inspect.isgenerator(running):
            return running
        with closing(running):
            while True:
                try:
                    pause: Any = next(running)
                except StopIteration as stop:
                    return stop.value
                if isinstance(pause, threading.Event):
                    assert pause.wait(30)
                else:
                    time.sleep(pause)

    return call


def _on_asyncio(step: Step) -> Step:
    async def call(self: Any, *args: Any, **extra: Any) -> Any:
        running = step(*args, **extra)
        if not inspect.isgenerator(running):
            return running
        with closing(running):
            while True:
                try:
                    pause: Any = next(running)
                except StopIteration as stop:
                    return stop.value
                if isinstance(pause, threading.Event):
                    while not pause.is_set():  # noqa: ASYNC110 - another thread sets it
                        await asyncio.sleep(0.001)
                else:
                    await asyncio.sleep(pause)

    return call


def transactions(count: int, payload: Any = None) -> list[Transaction]:
    return [Transaction(f"tx-{number}", payload) for number in range(count)]


def policy(
    *,
    process: RetryPolicy = ONCE,
    success: RetryPolicy = ONCE,
    exception: RetryPolicy = ONCE,
    fetch: RetryPolicy = ONCE,
    concurrency: int = 1,
    batch: int = 1,
    **loop: Any,
) -> ConsumerPolicy:
    return ConsumerPolicy(
        ConsumerLoopPolicy(batch=BatchPolicy(batch), concurrency=ConcurrencyPolicy(concurrency), **loop),
        ConsumerSteps(
            FetchPolicy(fetch), ProcessPolicy(process), SuccessPolicy(success), ExceptionPolicy(exception)
        ),
    )


def failing(*failures: BaseException | None, value: Any = None) -> Step:
    """A step that raises these in turn (None: returns), and then returns `value`."""
    left: Sequence[BaseException | None] = list(failures)

    def step(*args: Any) -> Any:
        nonlocal left
        if left:
            failure, left = left[0], left[1:]
            if failure is not None:
                raise failure
        return value

    return step
