"""Read only by mypy --strict (test_typing.py): a line that ends with `# error: x` must be refused with code x."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import assert_type

from conquiet import Conquiet
from conquiet.app import Task
from conquiet.jobs import Job, JobWorker, RetrySchedule, WorkerCounts
from conquiet.testing import assert_enqueued

app = Conquiet("memory://", retry=RetrySchedule(max_retries=1))
Conquiet("memory://", retries=3)  # error: call-arg


@app.task
def plain(to: str, copies: int = 1) -> float:
    return 0.5 * copies


@app.task(queue="mails", retry=RetrySchedule(), timeout=2.5, priority=1, name="other")
async def waiting(to: str) -> bytes:
    return to.encode()


@app.task(queue=5)  # error: call-overload, untyped-decorator
def wrong() -> None: ...


async def use() -> None:
    assert_type(plain("ann", copies=2), float)
    assert_type(await waiting("ann"), bytes)
    assert_type(plain.enqueue("ann"), Job)
    assert_type(plain.enqueue("ann", copies=2), Job)
    assert_type(await waiting.enqueue_async("ann"), Job)
    assert_type(plain.enqueue("ann", delay=5), Job)
    assert_type(plain.enqueue("ann", connection=object(), at=datetime.now(UTC)), Job)
    assert_type(await plain.enqueue_async("ann", at=datetime.now(UTC)), Job)
    assert_type(plain.options(delay=5, id="a", priority=1).enqueue("ann", 2), Job)
    assert_type(plain.enqueue_many([("ann",), {"to": "bob"}], delay=3), list[str])
    assert_type(app.worker({"mails": 3, "default": None}), JobWorker)
    assert_type(app.drain(), WorkerCounts)
    assert_type(assert_enqueued(plain, "ann"), list[Job])
    assert_type(app.tasks["plain"].name, str)
    kept: Task[[str], object] = waiting
    kept.enqueue("ann")

    plain(5)  # error: arg-type
    plain.enqueue()  # error: call-overload
    plain.enqueue(5)  # error: call-overload
    plain.enqueue("ann", copy=2)  # error: call-overload
    plain.enqueue("ann", delay="soon")  # error: call-overload
    plain.options(delay=5).enqueue(5)  # error: arg-type
    plain.options(queue="b")  # error: call-arg
    plain.enqueue_many(["ann"])  # error: list-item
    await waiting.options().enqueue_async(to=5)  # error: arg-type
    plain.nothing()  # error: attr-defined
