"""Two versions of a program work on the same queues while one replaces the other."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from conquiet import Conquiet
from conquiet.jobs import Job, JobContext, JobState, JobWorker, TaskMismatchError
from conquiet.testing import ManualClock
from tests.integration.app import importable
from tests.integration.app.conftest import QUICK
from tests.integration.jobs.background import Running, until


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [message for message in caplog.messages if "for a worker whose code fits" in message]


def test_jobs_of_the_new_version_wait_for_its_workers(
    app: Conquiet, dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[Any] = []

    @app.task
    def note(n: int) -> None:
        seen.append(n)

    with Conquiet(dsn, retry=QUICK) as new:

        @new.task(name="note")
        def note_in_colour(n: int, colour: str) -> None:
            seen.append((n, colour))

        @new.task
        def shout(n: int) -> None:
            seen.append(n)

        with caplog.at_level(logging.WARNING), Running(app.worker(concurrency=2, name="old")) as old:
            note_in_colour.enqueue_many([(n, "red") for n in range(20)])
            shout.enqueue_many([(n,) for n in range(20)])
            until(lambda: old.worker.counts.released >= 40 and len(told(caplog)) == 2)
            assert seen == []
            with Running(new.worker(concurrency=2, name="new")):
                until(lambda: new.store.stats("default")["default"].succeeded > 0)  # beside the old one
                old.worker.stop()
                until(lambda: new.store.stats("default")["default"].succeeded == 40, 60)
        assert len(seen) == 40
        jobs = new.store.list(limit=100)
        assert {(job.state, job.retries, job.lease_expiries) for job in jobs} == {(JobState.SUCCEEDED, 0, 0)}
        first = jobs[0].attempts[0]
        assert (first.outcome, first.category, first.error_type) == (
            "released",
            "MISMATCH",
            "TaskMismatchError",
        )
        # Once for each task.
        assert sorted("no task 'shout'" in message for message in told(caplog)) == [False, True]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def timed(clock: ManualClock) -> Conquiet:
    app = Conquiet("memory://", retry=QUICK, clock=clock)

    @app.task
    def note(n: int) -> None:
        if n < 0:
            raise ValueError(n)

    return app


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        ({"task": "gone", "arguments": {}}, "no task 'gone'"),
        ({"task": "note", "arguments": {"n": 1, "m": 2}}, "an argument 'm', which is not a parameter"),
        ({"task": "note", "arguments": {}}, "missing a required argument: 'n'"),
    ],
)
def test_only_after_a_quarter_of_an_hour_is_it_failed(
    timed: Conquiet, clock: ManualClock, payload: dict[str, Any], reason: str
) -> None:
    job_id = timed.store.enqueue("default", payload).id
    clock.advance(3_600)  # a backlog: the first worker that gets it may be an old one all the same
    begun, delays = clock.time(), []
    while True:
        timed.drain()
        job = timed.store.get(job_id)
        if job.state is JobState.FAILED:
            break
        assert (job.state, job.retries, job.lease_expiries) == (JobState.READY, 0, 0)
        assert reason in job.error
        delays.append(job.retry_at.timestamp() - clock.time())
        clock.advance(delays[-1])
    assert clock.time() - begun == pytest.approx(900, abs=0.01)
    assert delays[:7] == pytest.approx([1, 2, 4, 8, 16, 30, 30], abs=0.01)
    assert reason in job.error
    assert [attempt.outcome for attempt in job.attempts] == ["released"] * len(delays) + ["failed"]


def test_a_job_that_ran_meanwhile_has_its_time_again(timed: Conquiet, clock: ManualClock) -> None:
    """A new version was rolled back: its jobs wait again, as long as before."""
    job_id = timed.store.enqueue("default", {"task": "note", "arguments": {"n": -1}}).id
    gone = timed._tasks.pop("note")

    @timed.task
    def other() -> None: ...

    timed.drain()
    clock.advance(600)
    timed._tasks["note"] = gone
    timed.drain()
    assert [attempt.outcome for attempt in timed.store.get(job_id).attempts] == ["released", "failed"]
    del timed._tasks["note"]
    clock.advance(600)
    timed.drain()
    assert timed.store.get(job_id).state is JobState.READY


def test_a_payload_that_no_version_can_run_is_failed_at_once(timed: Conquiet) -> None:
    ids = [timed.store.enqueue("default", payload).id for payload in ({"order": 1}, {"task": "note"})]
    assert timed.drain().failed == 2
    assert [timed.store.get(job_id).state for job_id in ids] == [JobState.FAILED] * 2


def test_from_a_child_process_too(tmp_path: Path) -> None:
    app = importable.app
    app.dsn = app.stores._dsn = f"sqlite:///{tmp_path}/jobs.db"
    payload = {"task": "write", "arguments": {"path": str(tmp_path / "here"), "colour": "red"}}
    job_id = app.store.enqueue("default", payload).id
    assert app.worker(isolation="process").run_until_idle().released == 1
    job = app.store.get(job_id)
    assert (job.state, job.retries) == (JobState.READY, 0)
    assert "an argument 'colour', which is not a parameter" in job.error
    assert app.worker(isolation="process", unknown_after=0).run_until_idle(wait_for_delayed=True).failed == 1
    app.close()


def test_a_handler_can_leave_a_job_to_other_versions(timed: Conquiet) -> None:
    def handle(job: Job, context: JobContext) -> None:
        raise TaskMismatchError("layout 3 is not known here")

    job_id = timed.store.enqueue("layouts", {"layout": 3}).id
    assert JobWorker(timed.store, handle, queues="layouts").run_until_idle().released == 1
    assert JobWorker(timed.store, handle, queues="layouts", unknown_after=0.0).run_until_idle().claimed == 0
    assert timed.store.get(job_id).error == "layout 3 is not known here"
