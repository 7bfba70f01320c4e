"""The workers of an app: each task by its own rules, whatever else is in the queue."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conquiet import Conquiet
from conquiet.flow import run
from conquiet.jobs import JobConfigError, JobState, RetrySchedule
from conquiet.testing import enqueued, inline
from tests.integration.app import importable


def test_jobs_that_no_task_can_run_are_failed_with_the_reason_and_their_neighbours_served(
    app: Conquiet,
) -> None:
    seen: list[int] = []

    @app.task
    def note(n: int) -> None:
        seen.append(n)

    wrong: dict[str, tuple[dict[str, Any], str]] = {
        "unknown": ({"task": "gone", "arguments": {}}, "this app has no task 'gone' \\(it has: 'note'\\)"),
        "foreign": ({"order": 1}, "was not enqueued by a task: its payload has no 'task'"),
        "odd": ({"task": ["note"]}, "was not enqueued by a task"),
        "bare": ({"task": "note"}, "'note' cannot be called .* its payload has no 'arguments'"),
        "old": (
            {"task": "note", "arguments": {"m": 1}},
            "has an argument 'm', which is not a parameter. It takes \\(n\\)",
        ),
        "too few": ({"task": "note", "arguments": {}}, "missing a required argument: 'n'"),
    }
    ids = {}
    for number, (name, (payload, _)) in enumerate(wrong.items()):
        note.enqueue(number)
        ids[name] = app.store.enqueue("default", payload).id
    counts = app.worker(concurrency=2, unknown_after=0).run_until_idle(wait_for_delayed=True)
    assert (counts.succeeded, counts.failed) == (6, 6)
    assert sorted(seen) == list(range(6))
    for name, (_, reason) in wrong.items():
        job = app.store.get(ids[name])
        assert (job.state, len(job.attempts)) == (JobState.FAILED, 1)
        with pytest.raises(JobConfigError, match=reason):
            raise JobConfigError(job.error)


def test_each_task_is_retried_by_its_own_schedule(memory: Conquiet) -> None:
    runs: dict[str, int] = {"never": 0, "often": 0, "as the store says": 0}

    def fail(name: str) -> None:
        runs[name] += 1
        raise ValueError(name)

    @memory.task(retry=RetrySchedule(max_retries=0))
    def never() -> None:
        fail("never")

    @memory.task(retry=RetrySchedule(max_retries=5, base_seconds=0.001, max_seconds=0.001))
    def often() -> None:
        fail("often")

    @memory.task
    def otherwise() -> None:
        fail("as the store says")

    @memory.task(retry=RetrySchedule(max_retries=1, base_seconds=1e7, max_seconds=1e7))
    def late() -> None:
        raise ValueError

    for task in (never, often, otherwise):
        task.enqueue()
    memory.worker().run_until_idle(wait_for_delayed=True)
    assert runs == {"never": 1, "often": 6, "as the store says": 4}
    late.enqueue()
    memory.drain()
    (job,) = enqueued(late)
    assert (job.state, job.retries) == (JobState.READY, 1)
    assert (job.retry_at - job.attempts[0].ended_at).total_seconds() > 1  # fails once in 10 million runs


def test_each_task_has_its_own_limit(memory: Conquiet) -> None:
    forever = threading.Event()

    @memory.task(timeout=0.05, retry=RetrySchedule(max_retries=0))
    def hangs() -> None:
        forever.wait(30)

    @memory.task(timeout=0.05, retry=RetrySchedule(max_retries=0))
    async def hangs_too() -> None:
        await asyncio.sleep(60)

    @memory.task(retry=RetrySchedule(max_retries=0))
    async def times_out_by_itself() -> None:
        raise TimeoutError("the platform did not answer")

    @memory.task
    def takes_longer() -> None:
        time.sleep(0.2)

    for task in (hangs, hangs_too, times_out_by_itself, takes_longer):
        task.enqueue()
    try:
        counts = memory.worker().run_until_idle()
    finally:
        forever.set()
    assert (counts.succeeded, counts.failed) == (1, 3)
    errors = {}
    for task in (hangs, hangs_too, times_out_by_itself):
        (job,) = enqueued(task)
        assert (job.state, job.attempts[0].category) == (JobState.FAILED, "TIMEOUT")
        errors[task.name] = job.error
    assert "the task ran past its limit of 0.05 s; its thread cannot be stopped" in errors["hangs"]
    assert errors["hangs_too"] == "the task ran past its limit of 0.05 s and was cancelled"
    assert errors["times_out_by_itself"] == "the platform did not answer"
    assert enqueued(takes_longer)[0].state is JobState.SUCCEEDED


@pytest.mark.parametrize("isolation", ["async", "thread"])
def test_the_workers_limit_is_for_tasks_without_one(memory: Conquiet, isolation: str) -> None:
    cancelled: list[str] = []

    @memory.task(retry=RetrySchedule(max_retries=0))
    async def hangs() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append("hangs")
            raise

    @memory.task(timeout=30)
    async def has_its_own() -> None:
        await asyncio.sleep(0.2)

    hangs.enqueue()
    has_its_own.enqueue()
    counts = memory.worker(isolation=isolation, timeout=0.05).run_until_idle()
    assert (counts.succeeded, counts.failed) == (1, 1)
    assert cancelled == ["hangs"]


def test_where_tasks_run(memory: Conquiet) -> None:
    places: dict[str, Any] = {}

    @memory.task(queue="coroutines")
    async def first() -> None:
        places["first"] = asyncio.get_running_loop()

    @memory.task(queue="coroutines")
    async def second() -> None:
        places["second"] = asyncio.get_running_loop()

    @memory.task(queue="functions")
    def plain() -> None:
        places["plain"] = threading.current_thread()

    for task in (first, second, plain):
        task.enqueue()
    assert memory.worker("coroutines").run_until_idle().succeeded == 2
    assert places["first"] is places["second"]  # coroutines alone share an event loop
    assert memory.worker(["functions"]).run_until_idle().succeeded == 1
    for task in (first, second, plain):
        task.enqueue()
    assert memory.worker().run_until_idle().succeeded == 3
    assert places["first"] is places["second"]  # beside a plain function, too
    with pytest.raises(
        JobConfigError, match="task 'plain' is a plain function, which would block the event loop"
    ):
        memory.worker(isolation="async")


def test_exactly_once_effects(app: Conquiet) -> None:
    """The effect and the ack are one transaction, through `app.context`."""
    tries: list[int] = []

    @app.task
    def bill(order: int) -> None:
        app.context.connection.execute(f"INSERT INTO invoices VALUES ({int(order)})")
        tries.append(app.context.version)
        if len(tries) == 1:
            raise RuntimeError("after the effect, before the ack")

    def rows(statement: str) -> list[Any]:
        store = app.store.operations.backend
        connection = run(store.begin())
        found = connection.execute(statement)
        result = list(found.fetchall()) if found.description else []
        run(store.commit(connection))
        return result

    rows("CREATE TABLE invoices (number INTEGER)")
    bill.enqueue(7)
    app.worker().run_until_idle(wait_for_delayed=True)
    assert tries == [1, 2]
    assert [tuple(row) for row in rows("SELECT number FROM invoices")] == [(7,)]


def test_in_processes(tmp_path: Path) -> None:
    """A child finds the app by its name in its module."""
    app = importable.app
    app.dsn = app.stores._dsn = f"sqlite:///{tmp_path}/jobs.db"
    importable.write.enqueue(str(tmp_path / "here"))
    importable.write_async.enqueue(str(tmp_path / "there"))
    hanging = importable.hang.enqueue(str(tmp_path / "hanging"))
    gone = app.store.enqueue("default", {"task": "gone", "arguments": {}})
    worker = app.worker(isolation="process", concurrency=2, unknown_after=0)
    counts = worker.run_until_idle()
    assert (counts.succeeded, counts.failed) == (2, 2)
    pids = {int((tmp_path / name).read_text()) for name in ("here", "there", "hanging")}
    assert os.getpid() not in pids
    assert "its process was killed" in app.store.get(hanging.id).error
    failed = app.store.get(gone.id)
    assert (failed.state, len(failed.attempts)) == (JobState.FAILED, 1)
    assert "this app has no task 'gone'" in failed.error
    app.close()
    with sqlite3.connect(tmp_path / "jobs.db") as database:
        assert database.execute("SELECT count(*) FROM conquiet_jobs").fetchone() == (4,)
    database.close()


def test_processes_need_an_app_that_they_can_import(memory: Conquiet) -> None:
    @memory.task
    def note() -> None: ...

    with pytest.raises(JobConfigError, match="needs the app as a variable of a module"):
        memory.worker(isolation="process")
    with pytest.raises(JobConfigError, match="location must be 'package.module:app', not 'app'"):
        memory.worker(isolation="process", location="app")
    memory.worker(isolation="process", location="tests.integration.app.importable:app")


def test_settings_are_checked(memory: Conquiet) -> None:
    with pytest.raises(JobConfigError, match="this app has no tasks"):
        memory.worker()

    @memory.task(queue="mails")
    def note() -> None: ...

    for settings, message in [
        ({"queues": "males"}, "no task uses the queue 'males', and no job is in it; the queues are: 'mails'"),
        ({"queues": {"mails": 0}}, "the concurrency of queue 'mails' must be an int"),
        ({"queues": []}, "at least one queue"),
        ({"timeout": 0}, "timeout must be a number of seconds, above 0"),
        ({"isolation": "fork"}, "isolation must be one of"),
        ({"concurrency": 0}, "concurrency must be an int"),
    ]:
        with pytest.raises(JobConfigError, match=message):
            memory.worker(**settings)  # type: ignore[arg-type]


def test_a_queue_has_places_of_its_own(memory: Conquiet) -> None:
    inside: list[int] = []
    most: list[int] = []
    all_there = threading.Barrier(3)

    @memory.task(queue="wide")
    def meet() -> None:
        all_there.wait(30)

    @memory.task(queue="narrow")
    def alone() -> None:
        inside.append(1)
        most.append(len(inside))
        inside.pop()

    meet.enqueue_many([()] * 3)
    alone.enqueue_many([()] * 20)
    counts = memory.worker({"wide": 3, "narrow": None}, concurrency=1).run_until_idle()
    assert counts.succeeded == 23
    assert set(most) == {1}


def test_what_is_left_in_a_queue_that_no_task_uses_any_more_can_be_served(app: Conquiet) -> None:
    seen: list[int] = []

    @app.task(queue="new")
    async def note(n: int) -> None:
        seen.append(n)

    app.store.enqueue("old", note.enqueue(1).payload)
    assert app.worker().run_until_idle().succeeded == 1
    assert app.worker("old").run_until_idle().succeeded == 1
    assert seen == [1, 1]


def test_a_coroutine_from_a_plain_function_is_run_too(memory: Conquiet) -> None:
    """A decorator unaware of asyncio returns one; if it were dropped, the call would count as a success."""
    seen: list[str] = []

    async def later(name: str) -> None:
        await asyncio.sleep(0)
        seen.append(name)

    @memory.task
    def wrapped(name: str) -> Any:
        return later(name)

    wrapped.enqueue("by a worker")
    assert memory.drain().succeeded == 1
    with inline(memory):
        wrapped.enqueue("inline")
        asyncio.run(wrapped.enqueue_async("inline, in a loop"))
    assert seen == ["by a worker", "inline", "inline, in a loop"]


@pytest.mark.parametrize("isolation", [None, "async", "thread"])
def test_a_task_that_returns_what_nobody_runs_has_failed(memory: Conquiet, isolation: str | None) -> None:
    def lazily(n: int) -> Iterator[int]:
        raise AssertionError("never run")
        yield n

    if isolation == "async":

        @memory.task(retry=RetrySchedule(max_retries=0))
        async def wrapped(n: int) -> Any:
            return lazily(n)
    else:

        @memory.task(retry=RetrySchedule(max_retries=0))
        def wrapped(n: int) -> Any:
            return lazily(n)

    job = wrapped.options(id="lazy").enqueue(1)
    options: dict[str, Any] = {} if isolation is None else {"isolation": isolation}
    assert memory.worker(**options).run_until_idle().failed == 1
    assert "wrapped returned a generator, and nobody runs that" in memory.store.get(job.id).error


def test_a_task_hands_on_in_its_own_transaction(app: Conquiet) -> None:
    """The next call is enqueued exactly if this one is acknowledged."""
    runs: list[int] = []

    @app.task
    def first(order: int) -> None:
        second.enqueue(order, connection=app.context.connection)
        runs.append(app.context.version)
        if len(runs) == 1:
            raise RuntimeError("after the enqueue")

    @app.task
    def second(order: int) -> None:
        runs.append(-order)

    first.enqueue(7)
    app.worker().run_until_idle(wait_for_delayed=True)
    assert runs == [1, 2, -7]
    assert len(enqueued(second)) == 1
