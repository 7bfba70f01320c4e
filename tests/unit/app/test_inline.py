"""Testing with an app: calls run inline, are asserted on, and are drained."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from conquiet import Conquiet
from conquiet.errors import PayloadError, TaskArgumentError
from conquiet.jobs import JobConfigError, JobState, RetrySchedule
from conquiet.testing import assert_enqueued, enqueued, inline


@pytest.fixture
def app() -> Iterator[Conquiet]:
    with Conquiet("memory://", retry=RetrySchedule(1, 0.01, 0.01)) as opened:
        yield opened


def test_inside_inline_an_enqueue_runs_the_call(app: Conquiet) -> None:
    seen: list[Any] = []

    @app.task
    def note(*what: Any) -> None:
        seen.append(what)

    with inline(app):
        job = note.enqueue((1, 2), {"a": (3,)}, delay=1_000)
        assert seen == [([1, 2], {"a": [3]})]  # as decoded from JSON
        assert job.state is JobState.SUCCEEDED
        assert assert_enqueued(note) == [job]
        assert len(note.enqueue_many([(4,), (5,)])) == 2
    assert seen[1:] == [(4,), (5,)]
    assert enqueued(note) == []  # the app's own store has none of it
    note.enqueue(6)
    assert len(seen) == 3


def test_what_the_queue_would_refuse_is_refused_inline(app: Conquiet) -> None:
    @app.task
    def note(what: Any) -> None:
        raise AssertionError("not called")

    with inline(app):
        with pytest.raises(PayloadError, match="the argument 'what' cannot be queued"):
            note.enqueue({1, 2})
        with pytest.raises(TaskArgumentError):
            note.enqueue()  # type: ignore[call-overload]  # what is refused
        with pytest.raises(JobConfigError):
            note.enqueue(1, delay=-1)
        assert enqueued(note) == []


def test_what_a_call_raises_is_raised(app: Conquiet) -> None:
    @app.task
    def fail() -> None:
        raise LookupError("no such thing")

    with inline(app):
        with pytest.raises(LookupError, match="no such thing"):
            fail.enqueue()
        (job,) = enqueued(fail)
        assert (job.state, job.error) == (JobState.FAILED, "no such thing")


def test_calls_from_within_calls_and_from_several_threads(app: Conquiet) -> None:
    seen: list[int] = []

    @app.task
    def count_down(n: int) -> None:
        seen.append(n)
        if n:
            count_down.enqueue(n - 1)

    with inline(app):
        count_down.enqueue(3)
        assert seen == [3, 2, 1, 0]
        with ThreadPoolExecutor(8) as pool:
            states = {job.state for job in pool.map(count_down.enqueue, [2] * 40)}
        assert states == {JobState.SUCCEEDED}
        assert (len(seen), len(enqueued(count_down, 0))) == (4 + 120, 41)


def test_coroutines_inline(app: Conquiet) -> None:
    seen: list[Any] = []

    @app.task
    async def note(what: str) -> None:
        await asyncio.sleep(0)
        seen.append((what, threading.current_thread() is threading.main_thread()))

    @app.task
    def plain(what: str) -> None:
        seen.append((what, True))

    async def within_a_loop() -> None:
        note.enqueue("beside the loop")
        await note.enqueue_async("in the loop")
        await plain.enqueue_async("plain")

    with inline(app):
        note.enqueue("no loop")
        asyncio.run(within_a_loop())
    assert seen == [("no loop", True), ("beside the loop", False), ("in the loop", True), ("plain", True)]


def test_the_context_is_that_of_the_job(app: Conquiet) -> None:
    seen: list[Any] = []

    @app.task
    def look() -> None:
        seen.append((app.context.job.id, app.context.version))
        with pytest.raises(JobConfigError, match="the store is in memory"):
            _ = app.context.connection

    with inline(app):
        job = look.enqueue()
    look.enqueue()
    assert app.drain().succeeded == 1
    assert seen[0] == (job.id, 1)
    assert len(seen) == 2
    with pytest.raises(JobConfigError, match="no job is running here"):
        _ = app.context
    with pytest.raises(JobConfigError, match="no job is running here"):
        look()


def test_blocks_within_each_other(app: Conquiet) -> None:
    @app.task
    def note() -> None: ...

    with inline(app):
        note.enqueue()
        with inline(app):
            assert enqueued(note) == []
        assert len(enqueued(note)) == 1
        with pytest.raises(JobConfigError, match="inside inline"):
            app.drain()


def test_assert_enqueued_tells_what_is_there(app: Conquiet) -> None:
    @app.task
    def send(to: str, *more: str, copies: int = 1) -> None: ...

    @app.task
    def other(to: str) -> None: ...

    other.enqueue("ann")
    with pytest.raises(AssertionError, match="^send was not enqueued. Of this task there are no jobs$"):
        assert_enqueued(send)
    send.enqueue("ann", copies=2)
    send.enqueue("ann", copies=2)
    send.enqueue("bob", "cy")
    assert len(assert_enqueued(send)) == 3
    assert len(assert_enqueued(send, "ann")) == 2
    assert len(assert_enqueued(send, "bob", "cy")) == 1
    assert len(assert_enqueued(send, copies=2)) == 2
    assert enqueued(send, "ann", copies=3) == []
    with pytest.raises(AssertionError) as caught:
        assert_enqueued(send, "dee")
    assert str(caught.value).splitlines() == [
        "send(to='dee') was not enqueued. Of this task there are:",
        "  send(to='ann', copies=2) × 2",
        "  send(to='bob', more=['cy'])",
    ]
    with pytest.raises(TaskArgumentError, match="unexpected keyword argument 'kopies'"):
        assert_enqueued(send, kopies=2)


def test_drain_runs_what_is_due_in_order(app: Conquiet) -> None:
    seen: list[str] = []

    @app.task(retry=RetrySchedule(3, 1e7, 1e7))
    def note(what: str) -> None:
        seen.append(what)
        if what == "more":
            note.enqueue("from within")
        if what == "fails":
            raise ValueError

    @app.task(queue="urgent", priority=1)
    def urgent() -> None:
        seen.append("urgent")

    for what in ("a", "more", "fails"):
        note.enqueue(what)
    note.enqueue("later", delay=3_600)
    urgent.enqueue()
    counts = app.drain()
    assert (counts.succeeded, counts.failed) == (4, 1)
    assert seen == ["urgent", "a", "more", "fails", "from within"]
    for what in ("fails", "later"):
        assert enqueued(note, what)[0].state is JobState.READY  # but not due
    assert app.drain().claimed == 0


def test_drain_waits_for_delayed_jobs_if_told(app: Conquiet) -> None:
    seen: list[str] = []

    @app.task
    def note(what: str) -> None:
        seen.append(what)

    note.enqueue("later", delay=0.05)
    assert app.drain(wait_for_delayed=True).succeeded == 1
    assert seen == ["later"]


def test_draining_inside_an_event_loop(app: Conquiet) -> None:
    loops: list[Any] = []

    @app.task
    async def note() -> None:
        loops.append(asyncio.get_running_loop())

    async def use() -> None:
        note.enqueue_many([()] * 2)
        assert (await app.drain_async()).succeeded == 2
        assert loops == [asyncio.get_running_loop()] * 2
        note.enqueue()
        assert app.drain().succeeded == 1

        @app.task
        def plain() -> None:
            loops.append(None)

        note.enqueue()
        plain.enqueue(delay=0.05)
        assert (await app.drain_async(wait_for_delayed=True)).succeeded == 2

    asyncio.run(use())
    assert len(loops) == 5
