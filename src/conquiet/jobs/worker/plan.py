"""The plan for running a job: its handler, time limit and retry schedule, looked up once per job."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from conquiet.checks import checked_seconds
from conquiet.errors import JobConfigError
from conquiet.jobs.model import Job
from conquiet.jobs.retry import RetrySchedule

__all__ = ["Delays", "Handler", "HandlerPlans", "JobPlan", "JobPlans", "TimeLimit"]

Handler = Callable[..., Any]
TimeLimit = Callable[[Job], float | None]
Delays = Callable[[Job], RetrySchedule | None]


class JobPlan(NamedTuple):
    """How a job is run."""

    handler: Handler
    timeout: float | None = None  # seconds
    retry: RetrySchedule | None = None  # gives the delay before a retry; None: the store's schedule


class JobPlans:
    """Where a worker looks up how to run a job. A subclass can be given to a `JobWorker` in place of handlers."""

    def plan(self, job: Job) -> JobPlan:
        """Return the plan for `job`. Called once per job, before it runs; an exception fails the job."""
        raise NotImplementedError

    def task(self, job: Job) -> str:
        """Return what kind of job it is: durations are measured by it. Must not raise."""
        return job.queue

    def knows(self, task: str) -> bool:
        """Return whether `task` is one of a limited number, so that metrics may have it as a label."""
        return True

    def handlers(self, queues: Sequence[str]) -> Iterable[Handler]:
        """Return the handlers that are known in advance; they are checked when the worker is created."""
        return ()


class HandlerPlans(JobPlans):
    """One handler for all jobs, or one per queue."""

    def __init__(
        self,
        handlers: Handler | Mapping[str, Handler],
        timeout: float | TimeLimit | None = None,
        delays: Delays | None = None,
    ) -> None:
        self._handlers = handlers
        self._timeout = timeout
        self._delays = delays
        if timeout is not None and not callable(timeout):
            self._timeout = checked_seconds(
                "execution_timeout", timeout, above_zero=True, error=JobConfigError
            )

    def plan(self, job: Job) -> JobPlan:
        handlers, timeout, delays = self._handlers, self._timeout, self._delays
        return JobPlan(
            handlers[job.queue] if isinstance(handlers, Mapping) else handlers,
            timeout(job) if callable(timeout) else timeout,
            None if delays is None else delays(job),
        )

    def handlers(self, queues: Sequence[str]) -> Iterable[Handler]:
        handlers = self._handlers
        if not isinstance(handlers, Mapping):
            return (handlers,)
        if missing := [queue for queue in queues if queue not in handlers]:
            raise JobConfigError(
                f"there is no handler for queue {missing[0]!r}; there are: {', '.join(map(repr, handlers))}"
            )
        return [handlers[queue] for queue in queues]
