"""Runs a handler in the chosen isolation and reports how it ended."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterable
from contextvars import copy_context
from typing import Any, NamedTuple

from conquiet.errors import (
    AbandonedThreadsError,
    CallTimeoutError,
    IsolationError,
    JobConfigError,
    JobRejectedError,
    RemoteCallError,
    StaleLeaseError,
    StoreOutcomeUnknownError,
    StoreUnavailableError,
)
from conquiet.flow import Call, Cancelled, Flow, ProcessCalls, Signal, call_in, describe, shielded
from conquiet.jobs.model import Job
from conquiet.jobs.operations import JobOperations
from conquiet.jobs.retry import RetrySchedule
from conquiet.jobs.worker.context import JobContext
from conquiet.jobs.worker.plan import Handler, JobPlan, JobPlans

__all__ = ["Execution", "Executor", "check_handlers"]

_log = logging.getLogger("conquiet.jobs")


class Execution(NamedTuple):
    """How a job's handler ended. It succeeded if no flag is set and there is no `error`."""

    job: Job
    error: BaseException | None = None
    category: str | None = None
    given_back: bool = False  # interrupted because the worker ends: released, no retry consumed
    settled: bool = False  # already acknowledged, in the handler's own transaction
    unknown: bool = False  # perhaps acknowledged in that transaction: the answer to the commit did not arrive
    lost: bool = False  # the lease was lost: its effect was not committed
    retryable: bool = True
    schedule: RetrySchedule | None = None  # for the delay before the next retry; None: the store's


def check_handlers(handlers: Iterable[Handler], isolation: str) -> None:
    """Refuse handlers that would fail every job, before any job is claimed."""
    for handler in handlers:
        if not callable(handler):
            raise JobConfigError(f"a handler must be callable, not {type(handler).__name__}")
        if isolation != "async" and _is_coroutine_function(handler):
            raise JobConfigError(f"{describe(handler)} is a coroutine function: use isolation='async'")
        if isolation == "process":
            ProcessCalls(handler, wrap=call_in_child)  # raises if a child process could not import it


class Executor:
    """Calls the handler of a job in the chosen isolation.

    | isolation | past `execution_timeout` |
    | --- | --- |
    | async | the coroutine is cancelled |
    | process | the child process is killed: the only hard stop |
    | thread | the thread is abandoned, fenced and counted; it keeps running |
    """

    def __init__(self, plans: JobPlans, operations: JobOperations, isolation: str) -> None:
        self._plan = plans.plan
        self._operations = operations
        self._isolation = isolation
        # How a handler is called, and whether it takes a context; by its id, because not all handlers are hashable.
        self._calls: dict[int, tuple[Handler, bool]] = {}
        self._processes: dict[Handler, ProcessCalls] = {}
        self._closed = False

    def context(self, job: Job) -> JobContext:
        return JobContext(job, self._operations.backend, Signal(), awaits=self._isolation == "async")

    def execute(self, context: JobContext) -> Flow[Execution]:
        """Run the handler of the context's job. Whatever it raises becomes part of the result."""
        job, retry = context.job, None
        try:
            plan = self._plan(job)
            retry = plan.retry
            yield self._call(plan, context)
            if context.transaction is None:
                return Execution(job)
            context.settling = True
            return (yield from shielded(self._commit(context)))
        except BaseException as error:  # noqa: BLE001 - a handler may raise anything: it fails the job
            ended = self._failed(job, error, retry)
        if context.transaction is not None:
            abandoned = self._isolation == "thread" and isinstance(ended.error, CallTimeoutError)
            yield from shielded(self._undo(context, abandoned))
        return ended

    def _failed(self, job: Job, error: BaseException, retry: RetrySchedule | None) -> Execution:
        # After close(), a cancellation or a dead child was caused by this worker; before, by the handler.
        ours = isinstance(error, Cancelled | IsolationError) and not isinstance(error, RemoteCallError)
        if (self._closed and ours) or isinstance(error, AbandonedThreadsError | KeyboardInterrupt):
            return Execution(job, error, given_back=True)
        return Execution(
            job,
            _with_text(error),
            "TIMEOUT" if _is(TimeoutError, error) else "SYSTEM",
            retryable=not _is(JobRejectedError, error),
            schedule=retry,
        )

    def _commit(self, context: JobContext) -> Flow[Execution]:
        """Commit the effect and the ack together, or neither."""
        job, transaction = context.job, context.transaction
        try:
            yield from self._operations.ack(job, transaction)
        except StaleLeaseError as error:
            yield from self._undo(context, abandoned=False)
            return Execution(job, error, lost=True)
        try:
            yield from self._operations.backend.commit(transaction)
        except StoreOutcomeUnknownError as error:
            return Execution(job, error, unknown=True)
        return Execution(job, settled=True)

    def _undo(self, context: JobContext, abandoned: bool) -> Flow[None]:
        try:
            if abandoned:
                yield from context.take_away()
            else:
                yield from self._operations.backend.roll_back(context.transaction)
        except (
            StoreUnavailableError
        ) as error:  # the connection is broken, so the transaction is rolled back anyway
            _log.debug("a transaction ended with its connection: %s", error)

    def close(self) -> None:
        """From now on, jobs whose handlers are interrupted are released."""
        self._closed = True
        for calls in list(self._processes.values()):
            calls.close()

    def _call(self, plan: JobPlan, context: JobContext) -> Call:
        handler, timeout, _ = plan
        if self._isolation == "process":
            calls = self._processes.get(handler)
            if calls is None:
                calls = self._processes.setdefault(handler, ProcessCalls(handler, wrap=call_in_child))
                if self._closed:
                    calls.close()
            job = context.job.plain()
            return Call(lambda: calls.run(job, timeout=timeout))
        found = self._calls.get(id(handler))
        if found is None:
            found = self._calls.setdefault(id(handler), (self._prepared(handler), _takes_context(handler)))
        call, takes_context = found
        return Call(call, context.job, *((context,) if takes_context else ()), timeout=timeout)

    def _prepared(self, handler: Handler) -> Handler:
        """Wrap `handler` so that the context variables it sets are not visible to the next job."""

        def in_own_context(job: Job, *context: JobContext) -> Any:
            try:
                return call_in(copy_context(), handler, job, *context)
            finally:
                for one in context:
                    one.leave()

        in_own_context.__qualname__ = describe(handler)  # for messages
        return in_own_context


def _is(kind: type[Exception], error: BaseException) -> bool:
    """Return whether `error` is of that kind. From a child process only the name of the type arrives."""
    if isinstance(error, RemoteCallError):
        return error.error_type == kind.__qualname__
    return isinstance(error, kind)


def _with_text(error: BaseException) -> BaseException:
    """Return `error`, or a substitute if its `__str__` raises: that must not keep the job from failing."""
    try:
        str(error)
    except Exception:  # noqa: BLE001 - __str__ is the user's code too
        return RuntimeError(f"{type(error).__qualname__}, which has no readable text")
    return error


def _is_coroutine_function(handler: Handler) -> bool:
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
        getattr(handler, "__call__", None)  # noqa: B004 - an object whose __call__ is a coroutine function
    )


def _takes_context(handler: Handler) -> bool:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    try:
        parameters = inspect.signature(handler).parameters.values()
    except ValueError:  # written in C, without a signature
        return False
    if any(parameter.kind is inspect.Parameter.VAR_POSITIONAL for parameter in parameters):
        return True
    return sum(parameter.kind in kinds for parameter in parameters) > 1


def call_in_child(handler: Handler, plain: dict[str, Any]) -> None:
    """Runs in the child process: rebuilds the job and calls the handler. The return value is dropped."""
    job = Job.of_plain(plain)
    context = JobContext(job, None, Signal())
    handler(*((job, context) if _takes_context(handler) else (job,)))
