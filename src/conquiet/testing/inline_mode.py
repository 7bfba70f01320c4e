"""Inline mode: a call runs where it is enqueued, through an in-memory store and its JSON."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from conquiet.app import Conquiet
from conquiet.errors import JobConfigError
from conquiet.flow import Call, Flow, Signal
from conquiet.jobs import Job, JobContext, JobStore, Nack, NewJob, RetrySchedule, open_store
from conquiet.jobs.operations import Items, JobOperations

__all__ = ["inline"]

_LONG = 86_400.0  # seconds: these leases are not extended, and a test may be stopped in a debugger


@contextmanager
def inline(app: Conquiet) -> Iterator[None]:
    """Inside the block every enqueue runs its call immediately, through JSON and back, and raises what the call raises.

    `app.store` is then an in-memory store that records what ran. `connection`, `delay`, `at`, retries and time limits
    have no effect, and a worker of the app refuses to run.
    """
    with open_store("memory://") as memory:
        operations = _InlineOperations(app, memory.operations.backend)
        with app.use_store(JobStore("memory://", operations, "never")):
            yield


class _InlineOperations(JobOperations):
    """Enqueueing a job claims it, runs it and settles it. The caller gets what the job raises."""

    def __init__(self, app: Conquiet, backend: Any) -> None:
        super().__init__(
            backend, retry=RetrySchedule(), random=random.random, max_lease_expiries=1, limits=app.limits
        )
        self._app = app
        self._run: Callable[[Job, JobContext], Any] = app.run_job
        self._lock = threading.Lock()

    def awaiting(self) -> _InlineOperations:
        twin = super().awaiting()
        assert isinstance(twin, _InlineOperations)
        twin._run = self._app.run_job_async
        return twin

    def enqueue(self, queue: str, new: NewJob, connection: Any, notify: bool = True) -> Flow[Job]:
        context = yield from self._claimed(queue, replace(new, delay=0.0))
        job = context.job
        try:
            yield Call(self._run, job, context)
        except BaseException as error:
            yield from self.nack(Nack(job, error, retryable=False))
            raise
        yield from self.ack(job, None)
        ended = yield from self.get(job.id)
        assert ended is not None
        return ended

    def enqueue_many(
        self, queue: str, items: Items, on_duplicate: str, connection: Any, notify: bool = True
    ) -> Flow[list[str]]:
        ids = []
        for item in list(items):
            new = item if isinstance(item, NewJob) else NewJob(item)
            job = yield from self.enqueue(queue, new, connection)
            ids.append(job.id)
        return ids

    def claim(
        self,
        queues: str | Sequence[str],
        limit: int,
        lease_ttl: float,
        worker: str,
        begun: int | None = None,
    ) -> Flow[list[Job]]:
        raise JobConfigError("inside inline() a worker has nothing to do: calls run where they are made")
        yield

    def _claimed(self, queue: str, new: NewJob) -> Flow[JobContext]:
        with self._lock:  # otherwise another thread could claim this job. An in-memory store does not block
            queued = yield from super().enqueue(queue, new, None)
            (job,) = yield from super().claim(queue, 1, _LONG, "inline")
        assert job.id == queued.id
        return JobContext(job, self.backend, Signal())
