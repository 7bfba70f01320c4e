"""Settings that a worker refuses before it claims anything."""

from __future__ import annotations

import asyncio
import functools
from typing import Any

import pytest

from conquiet.errors import IsolationError
from conquiet.jobs import Job, JobConfigError, JobStore, JobWorker, open_async_store, open_store


@pytest.fixture
def store() -> JobStore:
    return open_store("memory://")


def handle(job: Job) -> None:
    """Nothing."""


async def handle_async(job: Job) -> None:
    """Nothing."""


class Awaited:
    async def __call__(self, job: Job) -> None:
        """Nothing."""


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"isolation": "fork"}, "isolation must be one of thread, process, async, mixed, not 'fork'"),
        ({"queues": None}, "queues= must be named"),
        ({"queues": []}, "at least one queue"),
        ({"queues": [""]}, "queue must be a non-empty str"),
        ({"queues": "x" * 256}, "at most 255 characters"),
        ({"concurrency": 0}, "concurrency must be an int from 1"),
        ({"concurrency": 2.0}, "concurrency must be an int"),
        ({"lease_ttl": 0}, "lease_ttl must be a number of seconds, above 0"),
        ({"lease_ttl": float("nan")}, "lease_ttl must be"),
        ({"execution_timeout": 0}, "execution_timeout must be a number of seconds, above 0"),
        ({"execution_timeout": "5"}, "execution_timeout must be"),
        ({"prefetch": -1}, "prefetch must be an int from 0"),
        ({"shutdown_timeout": -1}, "shutdown_timeout must be a number of seconds, at least 0"),
        ({"worker": "a\0b"}, "worker must not hold NUL"),
    ],
)
def test_settings_are_checked(store: JobStore, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(JobConfigError, match=message):
        JobWorker(store, handle, **{"queues": "q", **settings})


@pytest.mark.parametrize("handler", [None, "print", {"q": None}, 5])
def test_a_handler_must_be_callable(store: JobStore, handler: Any) -> None:
    with pytest.raises(JobConfigError, match="a handler must be callable, not"):
        JobWorker(store, handler, queues="q")


def generating(job: Any) -> Any:
    yield


async def generating_async(job: Any) -> Any:
    yield


@pytest.mark.parametrize("isolation", ["thread", "process", "async"])
@pytest.mark.parametrize("handler", [generating, generating_async, functools.partial(generating)])
def test_a_generator_function_is_refused(store: JobStore, handler: Any, isolation: str) -> None:
    with pytest.raises(JobConfigError, match="is a generator function: calling it would not run it"):
        JobWorker(store, handler, queues="q", isolation=isolation)


@pytest.mark.parametrize("isolation", ["thread", "process"])
@pytest.mark.parametrize("handler", [handle_async, functools.partial(handle_async), Awaited()])
def test_coroutines_need_asyncio(store: JobStore, handler: Any, isolation: str) -> None:
    """A thread would create the coroutine, drop it, and report success."""
    with pytest.raises(JobConfigError, match="is a coroutine function: use isolation='async'"):
        JobWorker(store, handler, queues="q", isolation=isolation)


def test_a_process_needs_a_handler_that_it_can_import(store: JobStore) -> None:
    with pytest.raises(IsolationError, match="must be a function at the top level of a module"):
        JobWorker(store, lambda job: None, queues="q", isolation="process")
    JobWorker(store, handle, queues="q", isolation="process")


def test_inside_an_event_loop_it_is_run_async(store: JobStore) -> None:
    async def use() -> None:
        worker = JobWorker(store, handle_async, queues="q", isolation="async")
        for run in (worker.run, worker.run_until_idle):
            with pytest.raises(
                JobConfigError,
                match="an event loop is already running in this thread: use await worker.run_async()",
            ):
                run()
        assert (await worker.run_async(until_idle=True)).claimed == 0

    asyncio.run(use())


def test_run_async_is_for_coroutines(store: JobStore) -> None:
    worker = JobWorker(store, handle, queues="q")
    with pytest.raises(JobConfigError, match="run_async needs isolation='async' or 'mixed', not 'thread'"):
        asyncio.run(worker.run_async())


def test_an_asyncio_store_needs_isolation_async() -> None:
    async def main() -> None:
        async with await open_async_store("memory://") as store:
            with pytest.raises(JobConfigError, match="needs a store made by open_store"):
                JobWorker(store, handle, queues="q")

    asyncio.run(main())
