"""Running a handler: what it is given, and how far it can be stopped."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from conquiet.errors import (
    CallTimeoutError,
    JobConfigError,
    OutcomeUnknownError,
    RemoteCallError,
    StaleLeaseError,
)
from conquiet.flow import Call, Cancelled, Flow, Signal, run, run_async, shielded
from conquiet.flow.process import ProcessCalls
from conquiet.jobs.backend import Backend
from conquiet.jobs.model import Job, Lease
from conquiet.jobs.operations import JobOperations

__all__ = ["Execution", "Executor", "JobContext"]

_log = logging.getLogger("conquiet.jobs")


class JobContext:
    """What a handler may know and use besides its job; handlers that take a second argument get it.

    `token` and `version` fence the handler's own writes: a later lease of the same job has a higher version.
    """

    def __init__(self, job: Job, backend: Backend | None, lease_lost: Signal) -> None:
        assert job.lease is not None
        self.job = job
        self.token = job.lease.token
        self.version = job.lease.version
        self.lease_lost = lease_lost
        self.progress: tuple[float, str] | None = None
        self._backend = backend
        self.transaction: Any = None  # the worker's business: commits or rolls it back

    @property
    def connection(self) -> Any:
        """A connection to the store's database, in a transaction that the worker commits together with the ack.

        Asking for it is choosing that: the handler's effect on it happens exactly once. Do not commit it.
        """
        if self.transaction is None:
            self.transaction = run(self._transactional().begin())
        return self.transaction

    async def get_connection(self) -> Any:
        """`connection` for coroutines."""
        if self.transaction is None:
            self.transaction = await run_async(self._transactional().begin())
        return self.transaction

    def report_progress(self, share: float, note: str = "") -> None:
        """How far the job is, from 0 to 1; shown by `JobWorker.running()` and logged at debug level."""
        self.progress = (share, note)
        _log.debug("job %s: %.0f %% %s", self.job.id, share * 100, note)

    def _transactional(self) -> Backend:
        if self._backend is None or not self._backend.capabilities.joins_transactions:
            raise JobConfigError(
                "there is no connection to ask for: the store is in memory, or the handler runs in a process"
            )
        return self._backend


@dataclass(frozen=True, slots=True)
class Execution:
    """How a job's handler ended. Neither `error` nor `given_back`: it succeeded."""

    job: Job
    error: BaseException | None = None
    category: str | None = None
    given_back: bool = False  # interrupted by the worker's own end: released, no retry consumed
    settled: bool = False  # acknowledged already, in the handler's own transaction
    lost: bool = (
        False  # the lease was gone when the effect should have been committed: nothing of it is there
    )


Handler = Callable[..., Any]


class Executor:
    """Calls the right handler in the chosen isolation.

    | isolation | past `execution_timeout` |
    | --- | --- |
    | async | the coroutine is cancelled |
    | process | the child process is killed: the only hard stop |
    | thread | the thread is abandoned, fenced and counted; it runs on |
    """

    def __init__(
        self,
        handlers: Handler | Mapping[str, Handler],
        operations: JobOperations,
        isolation: str,
        timeout: float | None,
    ) -> None:
        self._handlers = handlers
        self._operations = operations
        self._isolation = isolation
        self._timeout = timeout
        self._takes_context: dict[Handler, bool] = {}
        self._processes: dict[Handler, ProcessCalls] = {}

    def execute(self, context: JobContext) -> Flow[Execution]:
        """Run the handler of the context's job; whatever it raises is an outcome, except the worker's own end."""
        job = context.job
        try:
            yield self._call(self._handler(job.queue), context)
            if context.transaction is None:
                return Execution(job)
            return (yield from shielded(self._commit(context)))
        except CallTimeoutError as error:
            failure = Execution(job, error, "TIMEOUT")
        except Cancelled as error:
            failure = Execution(job, error, given_back=True)
        except RemoteCallError as error:
            failure = Execution(job, error, "SYSTEM")
        except Exception as error:  # noqa: BLE001 - a handler may raise anything: it is the job's failure
            failure = Execution(job, error, "TIMEOUT" if isinstance(error, TimeoutError) else "SYSTEM")
        if context.transaction is not None:
            yield from shielded(self._operations.backend.roll_back(context.transaction))
        return failure

    def _commit(self, context: JobContext) -> Flow[Execution]:
        """The effect and the ack together, or neither."""
        job, transaction = context.job, context.transaction
        backend = self._operations.backend
        try:
            yield from self._operations.ack(job, transaction)
        except StaleLeaseError as error:
            yield from backend.roll_back(transaction)
            return Execution(job, error, lost=True)
        context.transaction = None
        try:
            yield from backend.commit(transaction)
        except OutcomeUnknownError as error:
            # The token tells: only this lease's own commit can have written its attempt.
            if not (yield from self._operations.is_settled(job, "succeeded")):
                return Execution(job, error, lost=True)
        return Execution(job, settled=True)

    def close(self) -> None:
        for calls in self._processes.values():
            calls.close()

    def _handler(self, queue: str) -> Handler:
        if not isinstance(self._handlers, Mapping):
            return self._handlers
        handler = self._handlers.get(queue)
        if handler is None:
            raise JobConfigError(
                f"there is no handler for queue {queue!r}; there are: {', '.join(self._handlers)}"
            )
        return handler

    def _call(self, handler: Handler, context: JobContext) -> Call:
        if self._isolation == "process":
            calls = self._processes.get(handler)
            if calls is None:
                calls = self._processes.setdefault(handler, ProcessCalls(handler, wrap=call_in_child))
            job = _plain(context.job)
            return Call(lambda: calls.run(job, timeout=self._timeout))
        takes_context = self._takes_context.get(handler)
        if takes_context is None:
            takes_context = self._takes_context.setdefault(handler, _takes_context(handler))
        args = (context.job, context) if takes_context else (context.job,)
        return Call(handler, *args, timeout=self._timeout)


def _takes_context(handler: Handler) -> bool:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(handler).parameters.values()
    if any(parameter.kind is inspect.Parameter.VAR_POSITIONAL for parameter in parameters):
        return True
    return sum(parameter.kind in kinds for parameter in parameters) > 1


def _plain(job: Job) -> dict[str, Any]:
    """A leased job as JSON, for a child process."""
    assert job.lease is not None
    return {
        "id": job.id,
        "queue": job.queue,
        "payload": job.payload,
        "priority": job.priority,
        "retries": job.retries,
        "max_retries": job.max_retries,
        "enqueued_at": job.enqueued_at.timestamp(),
        "correlation_id": job.correlation_id,
        "lease": [
            job.lease.token,
            job.lease.version,
            job.lease.expires_at.timestamp(),
            job.lease.ttl,
            job.lease.worker,
        ],
    }


def call_in_child(handler: Handler, plain: dict[str, Any]) -> None:
    """In the child process: the job as an object again, and the handler called. What it returns is dropped."""
    from conquiet.clock import utc
    from conquiet.jobs.model import JobState

    token, version, expires_at, ttl, worker = plain.pop("lease")
    lease = Lease(token, version, utc(expires_at), ttl, worker)
    enqueued_at = utc(plain.pop("enqueued_at"))
    job = Job(**plain, state=JobState.IN_FLIGHT, retry_at=None, enqueued_at=enqueued_at, lease=lease)
    context = JobContext(job, None, Signal())
    handler(*((job, context) if _takes_context(handler) else (job,)))
