"""The two variants of the Consumer Engine: thin shells around the same flows, one on threads and one on asyncio."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from conquiet.clock import SYSTEM_CLOCK, Clock
from conquiet.errors import TaskConfigError
from conquiet.flow import ThreadCalls, run, run_async
from conquiet.task.connector import AsyncConnector, Connector
from conquiet.task.lifecycle import Lifecycle, empty
from conquiet.task.loop import ConsumeLoop, Source
from conquiet.task.mixins.policies import ConsumerPolicy
from conquiet.task.outcome import ConsumeReport, Outcome
from conquiet.task.transaction import Transaction

__all__ = ["AsyncConsumerMixin", "ConsumerMixin"]

_POLICY = ConsumerPolicy()


class _Consumer:
    """The common part of both variants: the steps that a consumer task implements, and `stop()`."""

    span_payload_fields: Sequence[str] = ()  # the only payload fields that spans show
    tracer_provider: Any = None  # an OpenTelemetry TracerProvider; None: the one of the process

    def process_transaction(self, transaction: Transaction) -> Any:
        """Do the work. The success handler gets the value; raise TransactionException(…, BUSINESS) to refuse it."""
        raise NotImplementedError

    @empty
    def handle_transaction_success(self, transaction: Transaction, result: Any) -> Any:
        """Called after `process_transaction` has returned `result`."""

    def handle_transaction_exception(self, transaction: Transaction, exception: Any) -> Any:
        """Called once, after `transaction` has failed with no further attempt."""

    def redact(self, text: str) -> str:
        """Return the text of an exception for spans and messages; DSN passwords are already removed."""
        return text

    def stop(self) -> None:
        """End the running loops: finish and settle what has begun, report the rest. Safe from any thread."""
        for loop in list(self._loops()):
            loop.stop()

    def _loops(self) -> set[ConsumeLoop]:
        return self.__dict__.setdefault("_conquiet_loops", set())  # type: ignore[no-any-return]

    @contextmanager
    def _running(self, loop: ConsumeLoop) -> Iterator[ConsumeLoop]:
        with _REGISTERING:
            self._loops().add(loop)
        try:
            yield loop
        finally:
            with _REGISTERING:
                self._loops().discard(loop)


_REGISTERING = threading.Lock()


class ConsumerMixin(_Consumer):
    """Consumes on threads."""

    def consume_transactions(
        self,
        connector: Connector,
        policy: ConsumerPolicy = _POLICY,
        *,
        on_outcome: Callable[[Outcome], None] | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> ConsumeReport:
        """Fetch, process and settle until nothing is left, the limit, the loop's time, or `stop()`."""
        _refuse_coroutines(self, *_STEPS)
        source = _source(connector, "")
        _refuse_coroutines(connector, "fetch_transactions", "settle", "release")
        if inspect.iscoroutinefunction(on_outcome):
            raise TaskConfigError("on_outcome is a coroutine function: use AsyncConsumerMixin")
        # Above the bound the loop ends, and until then no further call is started.
        calls = ThreadCalls(policy.loop.max_abandoned_threads + 1)
        with self._running(ConsumeLoop(self, source, policy, clock, calls, on_outcome)) as loop:
            return run(loop.run(), clock=clock, calls=calls)

    def start_processing(
        self,
        transaction: Transaction,
        policy: ConsumerPolicy = _POLICY,
        *,
        clock: Clock = SYSTEM_CLOCK,
    ) -> Outcome:
        """Run one transaction through its steps, outside any loop: nothing is fetched or settled."""
        _refuse_coroutines(self, *_STEPS)
        calls = ThreadCalls(policy.loop.max_abandoned_threads + 1)
        # Nothing can cut this off, so a CancelledError comes from the task's own code and is a failure.
        cycle = Lifecycle(self, policy, clock, is_cut_off=lambda: False)
        return run(cycle.run(transaction), clock=clock, calls=calls)


class AsyncConsumerMixin(_Consumer):
    """Consumes on asyncio; `process_transaction` and the handlers are coroutines."""

    async def consume_transactions(
        self,
        connector: AsyncConnector,
        policy: ConsumerPolicy = _POLICY,
        *,
        on_outcome: Callable[[Outcome], Any] | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> ConsumeReport:
        """Fetch, process and settle until nothing is left, the limit, the loop's time, or `stop()`."""
        source = _source(connector, "_async")
        with self._running(ConsumeLoop(self, source, policy, clock, ThreadCalls(), on_outcome)) as loop:
            return await run_async(loop.run())

    async def start_processing(
        self,
        transaction: Transaction,
        policy: ConsumerPolicy = _POLICY,
        *,
        clock: Clock = SYSTEM_CLOCK,
    ) -> Outcome:
        """Run one transaction through its steps, outside any loop: nothing is fetched or settled."""
        caller = asyncio.current_task()
        assert caller is not None
        before = caller.cancelling()
        cycle = Lifecycle(self, policy, clock, is_cut_off=lambda: caller.cancelling() > before)
        return await run_async(cycle.run(transaction))


def _source(connector: Any, suffix: str) -> Source:
    fetch = getattr(connector, f"fetch_transactions{suffix}", None)
    if not callable(fetch):
        other = "ConsumerMixin" if suffix else "AsyncConsumerMixin"
        hint = (
            f"; it has the other variant's: use {other}"
            if hasattr(connector, "fetch_transactions" if suffix else "fetch_transactions_async")
            else ""
        )
        raise TaskConfigError(f"{type(connector).__name__} has no method fetch_transactions{suffix}{hint}")
    return Source(
        fetch, getattr(connector, f"settle{suffix}", None), getattr(connector, f"release{suffix}", None)
    )


_STEPS = ("process_transaction", "handle_transaction_success", "handle_transaction_exception")


def _refuse_coroutines(owner: object, *names: str) -> None:
    for name in names:
        if inspect.iscoroutinefunction(getattr(owner, name, None)):
            raise TaskConfigError(
                f"{type(owner).__name__}.{name} is a coroutine function: use AsyncConsumerMixin"
            )
