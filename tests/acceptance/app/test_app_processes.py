"""An app in practice: a file of its own, one process that enqueues, others that work, and some of them killed."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from conquiet.jobs import JobState, open_store

JOBS = """
import asyncio, os, sys, time
from pathlib import Path
from conquiet import Conquiet
from conquiet.jobs import RetrySchedule

app = Conquiet("sqlite:///jobs.db", retry=RetrySchedule(max_retries=3, base_seconds=0.01, max_seconds=0.01))


@app.task(queue="mails")
def send(to: str) -> None:
    with open("sent", "a") as file:
        file.write(to + "\\n")


@app.task
async def wait_for(name: str) -> None:
    Path(name + ".begun").touch()
    while not Path(name).exists():
        await asyncio.sleep(0.01)


if __name__ == "__main__":
    send.enqueue_many([(f"user{n}",) for n in range(100)])
    wait_for.enqueue("go")
"""
WORKER = (
    "import jobs; worker = jobs.app.worker({'mails': 2, 'default': None}, lease_ttl=2, handle_signals=True); "
    "print(worker.run(), flush=True)"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "jobs.py").write_text(JOBS)
    return tmp_path


@contextmanager
def start(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A process that does not outlive a failed assertion."""
    command = [sys.executable, "-W", "error", *arguments]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        except BaseException:
            process.kill()
            raise


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_worker_that_is_killed_loses_nothing_and_sigterm_drains(folder: Path) -> None:
    with start(folder, "jobs.py") as producer:
        pass
    assert producer.returncode == 0
    with start(folder, "-c", WORKER) as worker:
        until((folder / "go.begun").exists)
        worker.kill()
    (folder / "go.begun").unlink()

    with open_store(f"sqlite:///{folder}/jobs.db") as store, start(folder, "-c", WORKER) as worker:
        until((folder / "go.begun").exists)  # it runs again: its lease has expired
        until(lambda: store.stats("mails")["mails"].succeeded == 100)
        worker.send_signal(signal.SIGTERM)  # it finishes the job it has begun
        (folder / "go").touch()
        assert worker.wait(20) == 0
        assert worker.stdout is not None
        assert "failed=0" in worker.stdout.read()
        assert {job.state for job in store.list(limit=200)} == {JobState.SUCCEEDED}
        (waited,) = store.list(queue="default")
        outcomes = [attempt.outcome for attempt in waited.attempts]
        assert (outcomes[0], outcomes[-1]) == ("lease expired", "succeeded")
    assert set((folder / "sent").read_text().split()) == {f"user{n}" for n in range(100)}
