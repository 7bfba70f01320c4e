"""Workers that are killed, or paused for longer than their lease."""

from __future__ import annotations

import json
import signal
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from conquiet.jobs import Job, JobContext, JobState, JobStore, JobWorker, open_store
from tests.integration.jobs.background import Running, until
from tests.integration.jobs.handlers import note, notes, words
from tests.integration.jobs.processes import Program, is_gone

Start = Callable[[JobWorker], Running]


@pytest.mark.clause("J-22", "J-10")
def test_the_jobs_of_a_killed_worker_run_again(
    placed: tuple[JobStore, str], start: Start, tmp_path: Path
) -> None:
    """Those that ran and those that it had claimed ahead; no retry is used up, and only those that ran are charged."""
    (durable, isolation), ttl = placed, 0.6
    ids = durable.enqueue_many(
        "q", [{"notes": str(tmp_path / str(n)), "seconds": 60 if n < 2 else 0} for n in range(5)]
    )
    work = {"concurrency": 2, "prefetch": 3, "lease_ttl": ttl, "isolation": isolation}
    with Program("work", dsn=durable.dsn, handler="linger", **work) as program:
        until(
            lambda: durable.stats("q")["q"].in_flight == 5 and all(words(tmp_path / str(n)) for n in (0, 1))
        )
        program.kill()
    handlers = [pid for n in (0, 1) for _, pid, _ in notes(tmp_path / str(n))]
    handled: list[tuple[str, int]] = []
    start(JobWorker(durable, lambda job: handled.append((job.id, job.lease.version)), queues="q"))
    assert durable.stats("q")["q"].in_flight + durable.stats("q")["q"].expired == 5
    assert handled == []  # not before the lease has expired
    until(lambda: durable.stats("q")["q"].succeeded == 5)
    assert sorted(handled) == sorted((job_id, 2) for job_id in ids)
    assert [durable.get(job_id).lease_expiries for job_id in ids] == [1, 1, 0, 0, 0]
    for job in map(durable.get, ids):
        assert job.retries == 0
        assert [a.outcome for a in job.attempts] == ["lease expired", "succeeded"]
        lasted = job.attempts[0].ended_at - job.attempts[0].started_at
        assert lasted.total_seconds() >= ttl - 1e-3
        assert job.attempts[1].started_at >= job.attempts[0].ended_at
    until(lambda: all(map(is_gone, handlers)))  # a child process ends with its worker


@pytest.mark.clause("J-26", "J-09", "J-12")
def test_a_worker_paused_past_its_lease_cannot_commit_when_it_wakes(
    durable: JobStore, start: Start, tmp_path: Path
) -> None:
    payload = {name: str(tmp_path / name) for name in ("notes", "go", "effect")}
    job = durable.enqueue("q", payload)
    with Program("work", dsn=durable.dsn, handler="fenced", lease_ttl=0.5) as paused:
        until(lambda: words(tmp_path / "notes"))
        paused.pause(lambda: is_free(durable))

        def handle(job: Job, context: JobContext) -> None:
            (tmp_path / "effect").write_text(str(context.version))
            note(job, "elsewhere")

        start(JobWorker(durable, handle, queues="q"))
        done = until(lambda: (found := durable.get(job.id)).state is JobState.SUCCEEDED and found)
        (tmp_path / "go").touch()
        paused.send(signal.SIGCONT)
        until(lambda: len(words(tmp_path / "notes")) == 3)
        paused.send(signal.SIGTERM)
        code, out, error = paused.end()
    counts = json.loads(out)
    assert (code, counts["lost"], counts["succeeded"]) == (0, 1, 0)
    assert f"job {job.id}: " in error
    assert "discarded" in error
    assert [(word, version) for word, _, version in notes(tmp_path / "notes")] == [
        ("begin", 1),
        ("elsewhere", 2),
        ("refused", 1),
    ]
    assert durable.get(job.id) == done
    assert [(a.number, a.outcome) for a in done.attempts] == [(1, "lease expired"), (2, "succeeded")]


def is_free(store: JobStore) -> bool:
    """Whether SQLite's write lock is free: a process paused with it would block all others."""
    if store.capabilities.name != "sqlite":
        return True
    connection = sqlite3.connect(store.dsn.removeprefix("sqlite:///"), isolation_level=None, timeout=0)
    try:
        connection.execute("BEGIN IMMEDIATE")
    except sqlite3.OperationalError:
        return False
    finally:
        connection.close()
    return True


@pytest.mark.clause("J-28")
def test_a_job_that_kills_its_worker_every_time_is_failed_in_the_end(
    durable_dsn: str, tmp_path: Path
) -> None:
    with open_store(durable_dsn, max_lease_expiries=3) as store:
        job = store.enqueue("q", {"notes": str(tmp_path / "notes")})
        work = {"handler": "die", "lease_ttl": 0.3, "concurrency": 1, "prefetch": 0, "max_lease_expiries": 3}
        for version in (1, 2, 3):
            with Program("work", dsn=durable_dsn, **work) as program:
                code, _, _ = program.end()
            assert code == -signal.SIGKILL
            assert notes(tmp_path / "notes")[-1][2] == version
        other = store.enqueue("q", {"notes": str(tmp_path / "other"), "seconds": 0})
        with Program("work", dsn=durable_dsn, **(work | {"handler": "linger"})):
            failed = until(lambda: (found := store.get(job.id)).state is JobState.FAILED and found)
            until(lambda: store.get(other.id).state is JobState.SUCCEEDED)  # and it keeps serving
        assert words(tmp_path / "notes") == ["begin"] * 3
        assert failed.error == "its lease expired 3 times: its worker died or lost the store each time"
        assert [a.outcome for a in failed.attempts] == ["lease expired"] * 3
        assert (failed.attempts[-1].error_type, failed.retries) == ("LeaseExpired", 0)
        assert store.claim("q") == []
