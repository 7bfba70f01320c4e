"""SIGTERM, in real processes: drains; a second one ends the worker immediately."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from conquiet.jobs import Job, JobState, JobStore, JobWorker
from tests.integration.jobs.background import until
from tests.integration.jobs.handlers import notes, words
from tests.integration.jobs.processes import Program, is_gone


def test_it_finishes_what_runs_and_gives_back_the_rest(placed: tuple[JobStore, str], tmp_path: Path) -> None:
    durable, isolation = placed
    payload = {"notes": str(tmp_path / "notes"), "seconds": 0.8}
    first, *others = durable.enqueue_many("q", [payload] * 4)
    work = {"dsn": durable.dsn, "handler": "linger", "isolation": isolation, "concurrency": 1, "prefetch": 3}
    with Program("work", **work) as program:
        until(lambda: words(tmp_path / "notes"))
        program.send(signal.SIGTERM)
        asked = time.monotonic()
        until(lambda: durable.stats("q")["q"].ready == 3)
        assert time.monotonic() - asked < 0.6  # while the first one runs
        assert [job.id for job in durable.claim("q", 10)] == others
        code, out, error = program.end()
    assert (code, error) == (0, "")
    counts = json.loads(out)
    assert (counts["succeeded"], counts["released"], counts["claimed"]) == (1, 3, 4)
    assert durable.get(first).state is JobState.SUCCEEDED
    assert [durable.get(job_id).retries for job_id in others] == [0, 0, 0]
    assert words(tmp_path / "notes") == ["begin", "end"]


def test_a_second_one_ends_at_once(placed: tuple[JobStore, str], tmp_path: Path) -> None:
    durable, isolation = placed
    job = durable.enqueue("q", {"notes": str(tmp_path / "notes"), "seconds": 60})
    with Program("work", dsn=durable.dsn, handler="linger", isolation=isolation) as program:
        until(lambda: words(tmp_path / "notes"))
        program.send(signal.SIGTERM)
        time.sleep(0.1)
        program.send(signal.SIGTERM)
        asked = time.monotonic()
        code, out, error = program.end()
        assert time.monotonic() - asked < 2.0
    assert code == 0
    left, counts = durable.get(job.id), json.loads(out)
    if isolation == "thread":
        assert error == "a handler did not end in time; its thread keeps running until the process ends\n"
        assert (left.state, counts["abandoned"]) == (JobState.IN_FLIGHT, 1)
    else:
        assert error == ""
        assert (left.state, left.retries, counts["released"]) == (JobState.READY, 0, 1)
    assert all(is_gone(pid) for _, pid, _ in notes(tmp_path / "notes"))


def test_an_idle_worker_ends_promptly(durable: JobStore, tmp_path: Path) -> None:
    durable.enqueue("q", {"notes": str(tmp_path / "notes"), "seconds": 0})
    with Program("work", dsn=durable.dsn, handler="linger") as program:
        until(lambda: durable.stats("q")["q"].succeeded == 1)
        time.sleep(0.2)
        program.send(signal.SIGTERM)
        asked = time.monotonic()
        assert program.end()[0] == 0
        assert time.monotonic() - asked < 1.0  # including the interpreter's own exit


def test_ctrl_c_drains_too_and_is_raised(placed: tuple[JobStore, str], tmp_path: Path) -> None:
    durable, isolation = placed
    job = durable.enqueue("q", {"notes": str(tmp_path / "notes"), "seconds": 0.3})
    with Program("work", dsn=durable.dsn, handler="linger", isolation=isolation) as program:
        until(lambda: words(tmp_path / "notes"))
        program.send(signal.SIGINT)
        code, _, error = program.end()
    assert code == -signal.SIGINT
    assert error.endswith("KeyboardInterrupt\n")
    assert durable.get(job.id).state is JobState.SUCCEEDED


def test_a_second_ctrl_c_ends_at_once(durable: JobStore, tmp_path: Path) -> None:
    durable.enqueue("q", {"notes": str(tmp_path / "notes"), "seconds": 60})
    with Program("work", dsn=durable.dsn, handler="linger") as program:
        until(lambda: words(tmp_path / "notes"))
        program.send(signal.SIGINT)
        time.sleep(0.2)
        program.send(signal.SIGINT)
        asked = time.monotonic()
        code, _, _ = program.end()
        assert time.monotonic() - asked < 2.0
    assert code == -signal.SIGINT


@pytest.mark.parametrize("handles", [False, True])
def test_signals_are_handled_only_on_request(memory: JobStore, handles: bool) -> None:
    seen: list[str] = []
    told = threading.Semaphore(0)

    def own(*_: object) -> None:
        seen.append("own")
        told.release()

    def handle(job: Job) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        assert told.acquire(timeout=30)

    before = signal.signal(signal.SIGTERM, own)
    try:
        worker = JobWorker(memory, handle, queues="q", concurrency=1, prefetch=0, handle_signals=handles)
        memory.enqueue_many("q", [{}, {}])
        counts = worker.run_until_idle()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert seen == ["own"] * counts.succeeded
    assert counts.succeeded == (1 if handles else 2)


def test_in_another_thread_nothing_is_said_about_signals_unless_asked(
    memory: JobStore, caplog: pytest.LogCaptureFixture
) -> None:
    with ThreadPoolExecutor(1) as thread:
        thread.submit(JobWorker(memory, print, queues="q").run_until_idle).result()
        assert caplog.messages == []
        thread.submit(JobWorker(memory, print, queues="q", handle_signals=True).run_until_idle).result()
    assert "does not run in the main thread, so SIGTERM will not stop it" in caplog.text
