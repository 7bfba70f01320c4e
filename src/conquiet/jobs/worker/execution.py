"""Runs a handler in the chosen isolation and reports how it ended."""

from __future__ import annotations

import inspect
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
    TaskMismatchError,
)
from conquiet.flow import (
    Call,
    Cancelled,
    Flow,
    ProcessCalls,
    Signal,
    call_in,
    deferred_kind,
    describe,
    refuse_deferred,
    shielded,
)
from conquiet.jobs.model import Job
from conquiet.jobs.operations import JobOperations
from conquiet.jobs.retry import RetrySchedule
from conquiet.jobs.worker.context import JobContext
from conquiet.jobs.worker.deferral import MISMATCH, UNKNOWN_AFTER, Deferral
from conquiet.jobs.worker.plan import Handler, JobPlan, JobPlans
from conquiet.observe import SafeLogger

__all__ = ["Execution", "Executor", "check_handlers", "is_coroutine_function"]

_log = SafeLogger("conquiet.jobs")


class Execution(NamedTuple):
    """How a job's handler ended. It succeeded if no flag is set and there is no `error`."""

    job: Job
    error: BaseException | None = None
    category: str | None = None
    given_back: bool = False  # released, no retry consumed: the worker ends, or its code does not fit
    unbegun: bool = False  # given back because it would wait too long here
    settled: bool = False  # already acknowledged, in the handler's own transaction
    unknown: bool = False  # perhaps acknowledged in that transaction: the answer to the commit did not arrive
    lost: bool = False  # the lease was lost: its effect was not committed
    abandoned: bool = False  # still running on a thread: nothing is settled, its lease lapses
    retryable: bool = True
    delay: float | None = None  # before a job that is given back is due again
    schedule: RetrySchedule | None = None  # for the delay before the next retry; None: the store's


def check_handlers(handlers: Iterable[Handler], isolation: str) -> None:
    """Refuse handlers that would fail every job, before any job is claimed."""
    for handler in handlers:
        if not callable(handler):
            raise JobConfigError(f"a handler must be callable, not {type(handler).__name__}")
        if deferred_kind(handler) == "generator function":
            raise JobConfigError(
                f"{describe(handler)} is a generator function: calling it would not run it. Use a function without yield"
            )
        if isolation not in ("async", "mixed") and is_coroutine_function(handler):
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

    "mixed" is a `MixedExecutor`: async for coroutine functions, thread for others.
    """

    def __init__(
        self, plans: JobPlans, operations: JobOperations, isolation: str, deferral: Deferral | None = None
    ) -> None:
        self._plan = plans.plan
        self._deferral = deferral or Deferral(UNKNOWN_AFTER)
        self.task = plans.task
        self.knows = plans.knows
        self.isolated = isolation == "process"
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
        try:
            plan = self._plan(context.job)
        except BaseException as error:  # noqa: BLE001 - plans may be the user's
            return self._failed(context.job, error, None)
        return (yield from self.run_plan(plan, context))

    def run_plan(self, plan: JobPlan, context: JobContext) -> Flow[Execution]:
        job = context.job
        try:
            if (returned := (yield self._call(plan, context))) is not None:
                refuse_deferred(plan.handler, returned)
            if context.transaction is None:
                return Execution(job)
            context.settling = True
            return (yield from shielded(self._commit(context)))
        except BaseException as error:  # noqa: BLE001 - a handler may raise anything: it fails the job
            ended = self._failed(job, error, plan.retry)
        if context.transaction is not None:
            abandoned = self._isolation == "thread" and isinstance(ended.error, CallTimeoutError)
            yield from shielded(self._undo(context, abandoned))
        return ended

    def _failed(self, job: Job, error: BaseException, retry: RetrySchedule | None) -> Execution:
        # After close(), a cancellation or a dead child was caused by this worker; before, by the handler.
        ours = isinstance(error, Cancelled | IsolationError) and not isinstance(error, RemoteCallError)
        # A KeyboardInterrupt on a handler's own thread is the handler's; in the event loop it may be Ctrl-C.
        interrupted = isinstance(error, KeyboardInterrupt) and self._isolation == "async"
        if (self._closed and ours) or interrupted or isinstance(error, AbandonedThreadsError):
            return Execution(job, error, given_back=True)
        if _is(TaskMismatchError, error):
            delay = self._deferral.delay(job, self.task(job), error)
            if delay is not None:
                return Execution(job, _with_text(error), MISMATCH, given_back=True, delay=delay)
        return Execution(
            job,
            _with_text(error),
            "TIMEOUT" if _is(TimeoutError, error) else "SYSTEM",
            retryable=not (_is(JobRejectedError, error) or _is(TaskMismatchError, error)),
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
            except GeneratorExit as error:  # in a flow it would end the runner, not only this job
                raise RuntimeError(f"{describe(handler)} raised GeneratorExit") from error
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
        substitute = RuntimeError(f"{type(error).__qualname__}, which has no readable text")
        return substitute.with_traceback(error.__traceback__)
    return error


def is_coroutine_function(handler: Handler) -> bool:
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
    """Runs in the child process: rebuilds the job and calls the handler, whose return value is not sent back."""
    job = Job.of_plain(plain)
    context = JobContext(job, None, Signal())
    refuse_deferred(handler, handler(*((job, context) if _takes_context(handler) else (job,))))
