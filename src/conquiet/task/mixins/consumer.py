"""The two variants of the Consumer Engine: thin shells around the same flows, one on threads and one on asyncio."""

from __future__ import annotations

import inspect
import threading
from collections.abc import AsyncIterable, Callable, Iterable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from conquiet.clock import SYSTEM_CLOCK, Clock
from conquiet.errors import AbandonedThreadsError, TaskConfigError
from conquiet.flow import Signal, ThreadCalls, run, run_async
from conquiet.observe import EngineMetrics
from conquiet.task.connector import AsyncConnector, Connector
from conquiet.task.lifecycle import Lifecycle, empty
from conquiet.task.loop import ConsumeLoop, Source
from conquiet.task.mixins.policies import ConsumerPolicy
from conquiet.task.outcome import ConsumeReport, Outcome
from conquiet.task.transaction import Transaction

__all__ = ["AsyncConsumerMixin", "ConsumerMixin"]

_POLICY = ConsumerPolicy()
_STOPPED = "_conquiet_stopped"  # in the __dict__ of a task: `stop()` came while no loop ran


class _Consumer:
    """The common part of both variants: the steps that a consumer task implements, and `stop()`."""

    span_payload_fields: Sequence[str] = ()  # the only payload fields that spans show
    tracer_provider: Any = None  # an OpenTelemetry TracerProvider; None: the one of the process

    @empty
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
        """End the running loops: finish and settle what has begun, report the rest. Safe from any thread and signal handler.

        If none runs, the next one ends at once, as stopped; the one after it does not.
        """
        loops = self._loops()
        if not loops:
            self.__dict__[_STOPPED] = True
        for loop in list(loops):
            loop.stop()
            self.__dict__.pop(_STOPPED, None)  # it began since we looked

    def _loops(self) -> set[ConsumeLoop]:
        return self.__dict__.setdefault("_conquiet_loops", set())  # type: ignore[no-any-return]

    def _running(self, loop: ConsumeLoop, stop: Signal | None) -> _Running:
        return _Running(self, loop, stop)


class _Running:
    """Registers a loop while it runs, so that `stop()` and the caller's signal find it.

    (Not made with `contextlib.contextmanager`, which changes the exceptions that pass through it.)
    """

    def __init__(self, task: _Consumer, loop: ConsumeLoop, stop: Signal | None) -> None:
        self._task = task
        self._loops = task._loops()
        self._loop = loop
        self._stop = stop

    def __enter__(self) -> ConsumeLoop:
        with _REGISTERING:
            self._loops.add(self._loop)
        # Looked at after it is registered: a stop at this moment finds either the loop or nobody who has looked.
        if self._task.__dict__.pop(_STOPPED, False):
            self._loop.stop()
        if self._stop is not None:
            self._stop.add_waker(self._loop.stop)
            if self._stop.is_set():
                self._loop.stop()
        return self._loop

    def __exit__(self, *_: object) -> None:
        if self._stop is not None:
            self._stop.remove_waker(self._loop.stop)
        with _REGISTERING:
            self._loops.discard(self._loop)


_REGISTERING = threading.Lock()


class ConsumerMixin(_Consumer):
    """Consumes on threads."""

    def consume_transactions(
        self,
        connector: Connector,
        policy: ConsumerPolicy = _POLICY,
        *,
        on_outcome: Callable[[Outcome], None] | None = None,
        stop: Signal | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> ConsumeReport:
        """Fetch, process and settle until nothing is left, the limit, the loop's time, or `stop()`.

        The signal `stop` does the same as `stop()`, and counts whenever it was set.
        """
        _check_arguments(policy, on_outcome, stop)
        _refuse_coroutines(self, *_STEPS)
        source = _source(connector, "")
        _refuse_coroutines(connector, "fetch_transactions", "settle", "release")
        if inspect.iscoroutinefunction(on_outcome):
            raise TaskConfigError("on_outcome is a coroutine function: use AsyncConsumerMixin")
        # Above the bound the loop ends, and until then no further call is started.
        calls = ThreadCalls(policy.loop.max_abandoned_threads + 1)
        with self._running(ConsumeLoop(self, source, policy, clock, calls, on_outcome), stop) as loop:
            return run(loop.run(), clock=clock, calls=calls)

    def start_processing(
        self,
        transaction: Transaction,
        policy: ConsumerPolicy = _POLICY,
        *,
        clock: Clock = SYSTEM_CLOCK,
    ) -> Outcome:
        """Run one transaction through its steps, outside any loop: nothing is fetched or settled.

        Calls that ran past their limits and still hang count for all transactions of the task's class: above
        `max_abandoned_threads` no other is started, and `AbandonedThreadsError` is raised.
        """
        _check_arguments(policy)
        _check_transaction(transaction)
        _refuse_coroutines(self, *_STEPS)
        calls = _calls_of(type(self), policy.loop.max_abandoned_threads)
        return run(Lifecycle(self, policy, clock).run(transaction), clock=clock, calls=calls)


class AsyncConsumerMixin(_Consumer):
    """Consumes on asyncio; `process_transaction` and the handlers are coroutines."""

    async def consume_transactions(
        self,
        connector: AsyncConnector,
        policy: ConsumerPolicy = _POLICY,
        *,
        on_outcome: Callable[[Outcome], Any] | None = None,
        stop: Signal | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> ConsumeReport:
        """Fetch, process and settle until nothing is left, the limit, the loop's time, or `stop()`.

        The signal `stop` does the same as `stop()`, and counts whenever it was set.
        """
        _check_arguments(policy, on_outcome, stop)
        source = _source(connector, "_async")
        with self._running(ConsumeLoop(self, source, policy, clock, ThreadCalls(), on_outcome), stop) as loop:
            return await run_async(loop.run())

    async def start_processing(
        self,
        transaction: Transaction,
        policy: ConsumerPolicy = _POLICY,
        *,
        clock: Clock = SYSTEM_CLOCK,
    ) -> Outcome:
        """Run one transaction through its steps, outside any loop: nothing is fetched or settled."""
        _check_arguments(policy)
        _check_transaction(transaction)
        return await run_async(Lifecycle(self, policy, clock).run(transaction))


# Of `start_processing`, by the class of the task: a bound per call would bound nothing.
_CALLS: WeakKeyDictionary[type, ThreadCalls] = WeakKeyDictionary()


def _calls_of(kind: type, most: int) -> ThreadCalls:
    with _REGISTERING:
        calls = _CALLS.get(kind)
        if calls is None:
            calls = _CALLS[kind] = ThreadCalls()
            EngineMetrics(kind.__name__, calls)
        calls.max_abandoned = most + 1
    if calls.abandoned > most:
        raise AbandonedThreadsError(
            f"{calls.abandoned} calls of {kind.__name__} ran past their time limits and still hold their threads; "
            f"max_abandoned_threads is {most}. Threads cannot be stopped: restart the process, and give the calls "
            "their own time limits"
        )
    return calls


def _check_arguments(policy: object, on_outcome: object = None, stop: object = None) -> None:
    if not isinstance(policy, ConsumerPolicy):
        hint = "; ConsumerPolicy.from_dict makes one of it" if isinstance(policy, dict) else ""
        raise TaskConfigError(f"policy must be a ConsumerPolicy, not {type(policy).__name__}{hint}")
    if on_outcome is not None and not callable(on_outcome):
        raise TaskConfigError(f"on_outcome must be callable, not {type(on_outcome).__name__}")
    if stop is not None and not isinstance(stop, Signal):
        raise TaskConfigError(f"stop must be a conquiet.flow.Signal, not {type(stop).__name__}")


def _check_transaction(transaction: object) -> None:
    if not isinstance(transaction, Transaction):
        raise TaskConfigError(f"a Transaction is processed, not {type(transaction).__name__}")
    if not isinstance(transaction.id, str):
        raise TaskConfigError(
            f"the id of a transaction is a text, not {type(transaction.id).__name__}: use str() on it"
        )


def _source(connector: Any, suffix: str) -> Source:
    fetch = getattr(connector, f"fetch_transactions{suffix}", None)
    if not callable(fetch):
        other = "ConsumerMixin" if suffix else "AsyncConsumerMixin"
        hint = ""
        if hasattr(connector, "fetch_transactions" if suffix else "fetch_transactions_async"):
            hint = f"; it has the other variant's: use {other}"
        elif isinstance(connector, AsyncIterable):
            hint = "; AsyncIterableConnector makes a connector of it, for AsyncConsumerMixin"
        elif isinstance(connector, Iterable):
            hint = f"; {'AsyncIterableConnector' if suffix else 'IterableConnector'} makes a connector of it"
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
