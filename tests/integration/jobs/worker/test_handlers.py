"""What a handler may be, what it gets, and what it leaves behind."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conquiet.jobs import Job, JobContext, JobState, JobStore, JobWorker, NewJob
from tests.integration.jobs.background import Running, until
from tests.integration.jobs.handlers import FAIL, TEXTS, lazily, tell

Start = Callable[[JobWorker], Running]
seen: list[tuple[Any, ...]] = []


class Sender:
    """Handlers that are not plain functions."""

    def with_job(self, job: Job) -> None:
        seen.append((job,))

    def with_both(self, job: Job, context: JobContext) -> None:
        seen.append((job, context))

    @staticmethod
    def static(job: Job, context: JobContext) -> None:
        seen.append((job, context))

    def __call__(self, job: Job, context: JobContext) -> None:
        seen.append((job, context))

    __hash__ = None


class AsyncSender:
    async def __call__(self, job: Job, context: JobContext) -> None:
        await asyncio.sleep(0)
        seen.append((job, context))


def with_anything(*args: Any) -> None:
    seen.append(args)


def with_keywords(job: Job, *, url: str = "default") -> None:
    seen.append((job,))


def after_more(url: str, job: Job, context: JobContext) -> None:
    seen.append((job, context))


async def with_both_async(job: Job, context: JobContext) -> None:
    seen.append((job, context))


HANDLERS: dict[str, tuple[Any, int, str]] = {
    "function": (lambda job: seen.append((job,)), 1, "thread"),
    "two arguments": (lambda job, context: seen.append((job, context)), 2, "thread"),
    "any arguments": (with_anything, 2, "thread"),
    "keyword-only": (with_keywords, 1, "thread"),
    "method": (Sender().with_job, 1, "thread"),
    "method with both": (Sender().with_both, 2, "thread"),
    "static method": (Sender.static, 2, "thread"),
    "unhashable object": (Sender(), 2, "thread"),
    "partial": (functools.partial(after_more, "url"), 2, "thread"),
    "partial with keyword": (functools.partial(with_keywords, url="x"), 1, "thread"),
    "coroutine function": (with_both_async, 2, "async"),
    "partial of a coroutine function": (functools.partial(with_both_async), 2, "async"),
    "object with a coroutine": (AsyncSender(), 2, "async"),
    "function on asyncio": (lambda job: seen.append((job,)), 1, "async"),
}


@pytest.mark.parametrize("kind", HANDLERS)
def test_whatever_can_be_called_is_a_handler(memory: JobStore, kind: str) -> None:
    handler, arguments, isolation = HANDLERS[kind]
    seen.clear()
    job = memory.enqueue("q", {"a": 1}, correlation_id="c", priority=3)
    counts = JobWorker(memory, handler, queues="q", isolation=isolation).run_until_idle()
    assert counts.succeeded == 1
    ((given, *context),) = seen
    assert (given.id, given.payload, given.priority, given.correlation_id) == (job.id, {"a": 1}, 3, "c")
    assert len(context) == arguments - 1
    for one in context:
        assert (one.job, one.token, one.version) == (given, given.lease.token, 1)


@pytest.mark.clause("J-27")
@pytest.mark.parametrize("isolation", ["thread", "process", "async"])
def test_a_handler_that_returns_what_nobody_runs_has_failed(
    store: JobStore, tmp_path: Path, isolation: str
) -> None:
    job = store.enqueue("q", {"notes": str(tmp_path / "notes")}, max_retries=0)
    JobWorker(store, lazily, queues="q", isolation=isolation).run_until_idle()
    failed = store.get(job.id)
    assert failed.state is JobState.FAILED
    assert "lazily returned a generator, and nobody runs that: its work is not done" in failed.error


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_a_handler_is_given_the_whole_job_wherever_it_runs(
    store: JobStore, tmp_path: Path, isolation: str
) -> None:
    payload = {"notes": str(tmp_path / "notes"), "big": 2**80, "text": "naïve 日本語"}
    job_id = store.enqueue("q", payload, priority=3, correlation_id="c").id
    JobWorker(store, tell, queues="q", isolation=isolation).run_until_idle(wait_for_delayed=True)
    given = Job.of_plain(json.loads((tmp_path / "notes").read_text()))
    done = store.get(job_id)
    assert (given.payload, given.priority, given.correlation_id, given.retries) == (payload, 3, "c", 1)
    assert (given.state, given.enqueued_at, given.max_retries) == (JobState.IN_FLIGHT, done.enqueued_at, 3)
    assert given.attempts == done.attempts[:1]
    assert given.error == given.attempts[0].error_message
    assert given.attempts[0].ended_at <= given.retry_at <= done.attempts[1].started_at
    assert (given.lease.version, given.lease.ttl) == (2, 5.0)


@pytest.mark.clause("J-27", "J-13")
@pytest.mark.parametrize("isolation", FAIL)
def test_whatever_an_error_says_the_job_fails_with_it(store: JobStore, isolation: str) -> None:
    ids = store.enqueue_many("q", [NewJob({"text": n}, max_retries=n % 2) for n in range(len(TEXTS))])
    worker = JobWorker(store, FAIL[isolation], queues="q", isolation=isolation)
    counts = worker.run_until_idle(wait_for_delayed=True)
    assert counts.failed == len(TEXTS) + len(TEXTS) // 2
    for job, text in zip(map(store.get, ids), TEXTS, strict=True):
        assert (job.state, len(job.attempts)) == (JobState.FAILED, 1 + job.max_retries)
        assert {attempt.category for attempt in job.attempts} == {"SYSTEM"}
        stored = text.replace("\0", "␀").replace("\ud83d", "?")
        assert job.error == job.attempts[-1].error_message == stored[:8_192]
        assert {attempt.error_type for attempt in job.attempts} == {"ValueError"}


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def test_an_error_without_a_readable_text_fails_its_job_and_nothing_else(store: JobStore) -> None:
    def handle(job: Job) -> None:
        if job.payload["bad"]:
            raise Unspeakable

    bad = store.enqueue("q", {"bad": True}, max_retries=0)
    store.enqueue_many("q", [{"bad": False}] * 20)
    counts = JobWorker(store, handle, queues="q").run_until_idle()
    assert (counts.failed, counts.succeeded) == (1, 20)
    assert store.get(bad.id).error == "Unspeakable, which has no readable text"


variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="untouched")


@pytest.mark.parametrize("timeout", [None, 30.0])
@pytest.mark.parametrize("isolation", ["thread", "async"])
def test_context_variables_do_not_pass_from_job_to_job(
    memory: JobStore, isolation: str, timeout: float | None
) -> None:
    found = []

    def look(job: Job) -> None:
        found.append(variable.get())
        variable.set(f"set by {job.payload['n']}")
        found.append(variable.get())

    async def look_async(job: Job) -> None:
        found.append(variable.get())
        variable.set(f"set by {job.payload['n']}")
        await asyncio.sleep(0.001)
        found.append(variable.get())

    memory.enqueue_many("q", [{"n": number} for number in range(5)])
    worker = JobWorker(
        memory,
        look if isolation == "thread" else look_async,
        queues="q",
        isolation=isolation,
        concurrency=1,
        execution_timeout=timeout,
    )
    token = variable.set("of whoever runs the worker")
    try:
        worker.run_until_idle()
    finally:
        variable.reset(token)
    outside = "of whoever runs the worker"
    assert found == [text for number in range(5) for text in (outside, f"set by {number}")]


def test_progress_is_shown_while_the_job_runs(memory: JobStore, start: Start) -> None:
    go_on = threading.Event()

    def handle(job: Job, context: JobContext) -> None:
        context.report_progress(0.25, "a quarter")
        go_on.wait(30)

    job = memory.enqueue("q", {})
    worker = JobWorker(memory, handle, queues="q")
    assert worker.running() == []
    start(worker)
    (context,) = until(lambda: [c for c in worker.running() if c.progress])
    assert (context.job.id, context.progress) == (job.id, (0.25, "a quarter"))
    go_on.set()
    until(lambda: not worker.running())


NAMES = [
    "a'b\"c",
    "'; DROP TABLE conquiet_jobs; --",
    "%s %(x)s {x} \\",
    "naïve 日本語 🎉",
    "new\nline\ttab",
    "é" * 255,
]


@pytest.mark.clause("J-20")
def test_names_are_data(store: JobStore) -> None:
    def fail(job: Job) -> None:
        raise ValueError(job.queue)

    for name in NAMES:
        store.enqueue(name, {}, id=name, correlation_id=name, max_retries=0)
        assert JobWorker(store, fail, queues=[name], worker=name).run_until_idle().failed == 1
        job = store.get(name)
        assert (job.queue, job.correlation_id, job.error) == (name, name, name)
        assert (job.attempts[0].worker, job.attempts[0].error_message) == (name, name)
    assert len(store.stats()) == len(NAMES)
