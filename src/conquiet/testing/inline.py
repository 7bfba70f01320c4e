"""For tests: calls that are run as soon as they are queued, each through a store in memory and its JSON."""

from __future__ import annotations

import threading
from typing import Any

from conquiet.app.calls import Tasks, run_job, run_job_async
from conquiet.app.task import Task
from conquiet.flow import Signal
from conquiet.jobs import Job, JobContext, NewJob, PayloadLimits, open_store

__all__ = ["InlineStore"]

_LONG = 86_400.0  # seconds: nobody renews these leases, and a test may stand in a debugger


class InlineStore:
    """A store in memory whose jobs are run by whoever enqueues them. What they raise is raised there."""

    def __init__(self, tasks: Tasks, limits: PayloadLimits) -> None:
        self.store = open_store("memory://", limits=limits)
        self._tasks = tasks
        self._lock = threading.Lock()

    def run(self, task: Task[..., Any], new: NewJob) -> Job:
        context = self._claimed(task, new)
        try:
            run_job(self._tasks, context.job, context, None)
        except BaseException as error:
            self.store.nack(context.job, error, retryable=False)
            raise
        return self._succeeded(context.job)

    async def run_async(self, task: Task[..., Any], new: NewJob) -> Job:
        context = self._claimed(task, new)
        try:
            await run_job_async(self._tasks, context.job, context)
        except BaseException as error:
            self.store.nack(context.job, error, retryable=False)
            raise
        return self._succeeded(context.job)

    def _claimed(self, task: Task[..., Any], new: NewJob) -> JobContext:
        with self._lock:  # between the two, another thread would get this job for its own
            queued = self.store.enqueue(
                task.queue,
                new.payload,
                id=new.id,
                priority=new.priority,
                max_retries=new.max_retries,
                correlation_id=new.correlation_id,
            )
            (job,) = self.store.claim(task.queue, lease_ttl=_LONG, worker="inline")
        assert job.id == queued.id
        return JobContext(job, self.store.operations.backend, Signal())

    def _succeeded(self, job: Job) -> Job:
        self.store.ack(job)
        ended = self.store.get(job.id)
        assert ended is not None
        return ended
