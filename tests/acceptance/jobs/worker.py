"""A job worker in its own process, for tests that kill it: `python -m tests.acceptance.jobs.worker '{…}'`.

Its jobs are of three kinds, with a queue each: `plain`; `effect`, with a row in the store's database, written through
the handler's connection; and `failing`, which raise every time. It ends at SIGTERM as every worker does, kills itself
(SIGKILL) at the point named in its instructions, and ends when its parent is gone.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import random
import signal
import sys
import threading
import time
from dataclasses import asdict, dataclass
from typing import Any

from conquiet.errors import StoreUnavailableError
from conquiet.flow import Flow
from conquiet.jobs import Job, JobContext, JobStore, JobWorker, RetrySchedule, open_store
from conquiet.jobs.worker import worker
from conquiet.jobs.worker.execution import Execution, Executor
from conquiet.verify.history import History
from conquiet.verify.recording.jobs import RecordedBackend, record
from tests.acceptance.fleet import READY


class AcksFirst(Executor):
    """Wrong on purpose, at most once: whatever happens in the handler, the job is lost."""

    def execute(self, context: JobContext) -> Flow[Execution]:
        yield from self._operations.ack(context.job, None)
        yield from super().execute(context)
        return Execution(context.job, settled=True)


RETRY = RetrySchedule(max_retries=3, base_seconds=0.01, max_seconds=0.05)
LONGEST_SECONDS = 0.008  # of a handler
SENDING = ("committing", "nacking", "releasing", "beating")  # points at which a statement has been sent
HISTORY = "CONQUIET_TEST_HISTORY"  # tells the child processes of isolation="process" where it is


@dataclass(frozen=True)
class Work:
    """The instructions for a worker."""

    dsn: str
    name: str
    history: str
    isolation: str = "thread"
    die_at: str | None = None
    die_at_nth: int = 1
    lease_ttl: float = 1.0
    executor: str = "Executor"  # or one that is wrong on purpose

    def command(self) -> list[str]:
        return [sys.executable, "-m", "tests.acceptance.jobs.worker", json.dumps(asdict(self))]


class Milestones:
    """Reports this process as ready at the first point it reaches, and kills it at one point, at the nth time."""

    def __init__(self, point: str | None, nth: int) -> None:
        self._ready = False
        self._point = point
        self._left = nth
        self._lock = threading.Lock()

    def __call__(self, point: str) -> None:
        with self._lock:
            if not self._ready:
                self._ready = True
                os.write(1, READY)
            self._left -= point == self._point
            due = point == self._point and self._left == 0
        if due and point in SENDING:
            threading.Thread(target=_die_soon, daemon=True).start()
        elif due:
            os.kill(os.getpid(), signal.SIGKILL)


def _die_soon() -> None:
    time.sleep(random.uniform(0.0, 0.003))
    os.kill(os.getpid(), signal.SIGKILL)


class Handlers:
    """Handlers for threads and for asyncio."""

    def __init__(self, backend: RecordedBackend, reached: Milestones) -> None:
        self._backend = backend
        self._reached = reached

    def plain(self, job: Job) -> None:
        self._backend.begin_handling(job)
        self._reached("handling")
        time.sleep(random.uniform(0.0, LONGEST_SECONDS))
        self._backend.end_handling(job)

    async def plain_async(self, job: Job) -> None:
        self._backend.begin_handling(job)
        self._reached("handling")
        await asyncio.sleep(random.uniform(0.0, LONGEST_SECONDS))
        self._backend.end_handling(job)

    def effect(self, job: Job, context: JobContext) -> None:
        self._backend.begin_handling(job)
        context.connection.execute(_INSERT.format(job.payload["n"]))
        self._reached("handling")
        time.sleep(random.uniform(0.0, LONGEST_SECONDS))

    async def effect_async(self, job: Job, context: JobContext) -> None:
        self._backend.begin_handling(job)
        result = (await context.get_connection()).execute(_INSERT.format(job.payload["n"]))
        if asyncio.iscoroutine(result):
            await result
        self._reached("handling")
        await asyncio.sleep(random.uniform(0.0, LONGEST_SECONDS))

    def failing(self, job: Job) -> None:
        self._backend.begin_handling(job)
        self._backend.end_handling(job, "fail")
        raise ValueError("as every time")

    async def failing_async(self, job: Job) -> None:
        self.failing(job)


_INSERT = "INSERT INTO effects VALUES ({})"


def plain_in_child(job: Job) -> None:
    assert job.lease is not None
    with _child_history().operation("handle", job.id, holder=job.lease.token):
        time.sleep(random.uniform(0.0, LONGEST_SECONDS))


def failing_in_child(job: Job) -> None:
    assert job.lease is not None
    with _child_history().operation("handle", job.id, holder=job.lease.token):
        raise ValueError("as every time")


@functools.cache
def _child_history() -> History:
    return History(os.environ[HISTORY])


def main() -> None:
    work = Work(**json.loads(sys.argv[1]))
    os.environ[HISTORY] = work.history
    threading.Thread(target=_end_with_parent, daemon=True).start()
    reached = Milestones(work.die_at, work.die_at_nth)
    vars(worker)["Executor"] = {"Executor": Executor, "AcksFirst": AcksFirst}[work.executor]
    with History(work.history) as history, patiently_opened(work.dsn) as store:
        handlers = Handlers(record(store, history, reached), reached)
        by_isolation: dict[str, dict[str, Any]] = {
            "thread": {"plain": handlers.plain, "effect": handlers.effect, "failing": handlers.failing},
            "async": {
                "plain": handlers.plain_async,
                "effect": handlers.effect_async,
                "failing": handlers.failing_async,
            },
            "process": {"plain": plain_in_child, "failing": failing_in_child},
        }
        JobWorker(
            store,
            by_isolation[work.isolation],
            isolation=work.isolation,
            worker=work.name,
            concurrency=2 if work.isolation == "process" else 4,
            lease_ttl=work.lease_ttl,
            handle_signals=True,
        ).run()


def patiently_opened(dsn: str) -> JobStore:
    """Open the store, waiting while the server is down."""
    while True:
        try:
            return open_store(dsn, retry=RETRY, migrate="never")
        except StoreUnavailableError:
            time.sleep(0.05)


def _end_with_parent() -> None:
    os.read(0, 1)  # nothing is written: the read returns when the parent ends
    os._exit(1)


if __name__ == "__main__":
    main()
