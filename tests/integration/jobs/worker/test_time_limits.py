"""How long a handler may run: longer than its lease, but not longer than execution_timeout."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conquiet.errors import AbandonedCallError, AbandonedThreadsError
from conquiet.flow import current_fence
from conquiet.flow.isolation import THREAD_CALLS
from conquiet.jobs import Job, JobState, JobStore, JobWorker, NewJob
from tests.integration.jobs.background import Running, until
from tests.integration.jobs.handlers import LINGER, notes, words

Start = Callable[[JobWorker], Running]
ISOLATIONS = ("thread", "async", "process")


@pytest.mark.clause("J-17", "J-16", "J-11")
def test_a_handler_of_ten_lease_times_finishes_exactly_once(
    store: JobStore, start: Start, tmp_path: Path
) -> None:
    """In every isolation, side by side, with another worker ready for any lease that expires."""
    ttl = 0.5  # shorter, and a busy machine misses a heartbeat
    jobs = {
        name: store.enqueue(name, {"notes": str(tmp_path / name), "seconds": 10 * ttl}) for name in ISOLATIONS
    }
    workers = [
        start(JobWorker(store, LINGER[name], queues=name, isolation=name, lease_ttl=ttl))
        for name in ISOLATIONS
    ]
    until(lambda: all(words(tmp_path / name) for name in ISOLATIONS))
    stolen: list[Job] = []
    start(JobWorker(store, stolen.append, queues=ISOLATIONS))
    until(lambda: all(store.get(job.id).state is JobState.SUCCEEDED for job in jobs.values()))
    for name, job in jobs.items():
        assert words(tmp_path / name) == ["begin", "end"]
        assert [(a.number, a.outcome) for a in store.get(job.id).attempts] == [(1, "succeeded")]
    assert stolen == []
    assert [worker.stop().succeeded for worker in workers] == [1, 1, 1]


@pytest.mark.clause("J-17", "J-27")
@pytest.mark.parametrize("isolation", ["async", "process"])
def test_past_the_limit_the_handler_is_ended_and_the_job_nacked(
    durable: JobStore, start: Start, tmp_path: Path, isolation: str
) -> None:
    """Although its lease is valid for much longer."""
    retries, limit = (
        (1, 0.3) if isolation == "async" else (0, 1.2)
    )  # a new process has to import modules first
    job = durable.enqueue("q", {"notes": str(tmp_path / "notes"), "seconds": 60}, max_retries=retries)
    worker = JobWorker(
        durable, LINGER[isolation], queues="q", isolation=isolation, execution_timeout=limit, lease_ttl=30
    )
    running = start(worker)
    failed = until(lambda: (found := durable.get(job.id)).state is JobState.FAILED and found)
    timeout = ("TIMEOUT", "CallTimeoutError")
    assert [(a.category, a.error_type) for a in failed.attempts] == [timeout] * (retries + 1)
    assert f"linger{'_async' * retries} ran past its limit of {limit:g} s" in failed.error
    said = notes(tmp_path / "notes")
    if isolation == "async":
        assert [word for word, _, _ in said] == ["begin", "cancelled"] * 2
    else:
        ((word, pid, _),) = said
        assert (word, Path(f"/proc/{pid}").exists()) == ("begin", False)
    assert running.stop().failed == retries + 1


@pytest.mark.clause("J-17")
def test_past_the_limit_a_thread_is_abandoned_fenced_and_counted(store: JobStore, start: Start) -> None:
    go_on, ended = threading.Event(), threading.Event()
    found: list[Any] = []

    def handle(job: Job) -> None:
        fence = current_fence()
        found.append(fence.closed)
        assert go_on.wait(30)
        found.append(fence.closed)
        try:
            fence.check()
        except AbandonedCallError as error:
            found.append(type(error))
        ended.set()

    job = store.enqueue("q", {}, max_retries=0)
    before = THREAD_CALLS.abandoned
    running = start(JobWorker(store, handle, queues="q", execution_timeout=0.2))
    failed = until(lambda: (now := store.get(job.id)).state is JobState.FAILED and now)
    assert [(a.outcome, a.category) for a in failed.attempts] == [("failed", "TIMEOUT")]
    assert "handle ran past its limit of 0.2 s" in failed.error
    assert THREAD_CALLS.abandoned == before + 1
    go_on.set()
    assert ended.wait(10)
    until(lambda: THREAD_CALLS.abandoned == before)
    counts = running.stop()
    assert found == [False, True, AbandonedCallError]
    assert store.get(job.id) == failed  # its late result changed nothing
    assert (counts.failed, counts.succeeded, counts.lost) == (1, 0, 0)


@pytest.mark.clause("J-17")
@pytest.mark.parametrize("ends", ["until_idle", "ends_when_hung"])
def test_too_many_abandoned_threads_end_a_worker_that_asks_for_it(
    memory: JobStore, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    """Jobs that cannot run any more are given back, not failed."""
    monkeypatch.setattr(THREAD_CALLS, "max_abandoned", THREAD_CALLS.abandoned + 2)
    go_on = threading.Event()
    hanging = memory.enqueue_many("q", [NewJob({}, max_retries=0)] * 2)
    others = memory.enqueue_many("q", [{}] * 5)
    hung = ends == "ends_when_hung"
    worker = JobWorker(
        *(memory, lambda job: go_on.wait(30)),
        queues="q",
        execution_timeout=0.1,
        concurrency=1,
        ends_when_hung=hung,
    )
    try:
        with pytest.raises(AbandonedThreadsError, match="restart the process"):
            worker.run() if hung else worker.run_until_idle()
    finally:
        go_on.set()
        until(lambda: THREAD_CALLS.abandoned == THREAD_CALLS.max_abandoned - 2)
    assert [[a.category for a in memory.get(job_id).attempts] for job_id in hanging] == [["TIMEOUT"]] * 2
    for job in map(memory.get, others):
        assert (job.state, job.retries) == (JobState.READY, 0)
        assert {a.outcome for a in job.attempts} <= {"released"}


@pytest.mark.clause("J-17")
def test_other_workers_go_on_when_all_threads_hang(
    memory: JobStore, start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It says so once, claims nothing, and goes on by itself when a handler that hung has ended."""
    monkeypatch.setattr(THREAD_CALLS, "max_abandoned", THREAD_CALLS.abandoned + 2)
    go_on = threading.Event()

    def handle(job: Job) -> None:
        if job.payload["hangs"]:
            go_on.wait(30)

    memory.enqueue_many("q", [NewJob({"hangs": True}, max_retries=0)] * 2)
    others = memory.enqueue_many("q", [{"hangs": False}] * 5)
    running = start(JobWorker(memory, handle, queues="q", execution_timeout=0.1, concurrency=1))
    until(lambda: "no job is claimed until a handler that hangs has ended" in caplog.text)
    until(lambda: memory.stats("q")["q"].ready == 5)
    assert not running.ended
    go_on.set()
    until(lambda: all(memory.get(job_id).state is JobState.SUCCEEDED for job_id in others))
    assert caplog.text.count("no job is claimed") == 1
    assert "jobs are claimed again" in caplog.text
    assert running.stop().failed == 2


@pytest.mark.clause("J-17")
@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_a_timeout_of_the_handlers_own_is_one_too(memory: JobStore, tmp_path: Path, isolation: str) -> None:
    handlers = {"thread": own_timeout, "process": own_timeout, "async": own_timeout_async}
    job = memory.enqueue("q", {}, max_retries=0)
    JobWorker(memory, handlers[isolation], queues="q", isolation=isolation).run_until_idle()
    assert [a.category for a in memory.get(job.id).attempts] == ["TIMEOUT"]


def own_timeout(job: Job) -> None:
    raise TimeoutError("the other side was slow")


async def own_timeout_async(job: Job) -> None:
    async with asyncio.timeout(0.01):
        await asyncio.sleep(60)
