"""What a worker counts for Prometheus: the same as its own counts, by queue, task and outcome."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest
from prometheus_client import REGISTRY

from conquiet.app import Conquiet
from conquiet.jobs import Job, JobContext, JobStore, JobWorker, NewJob, open_store
from conquiet.jobs.worker.events import AttemptEvents, AttemptListener, AttemptLog
from tests.integration.jobs.background import Running, until

Start = Callable[[JobWorker], Running]
OUTCOMES = ("succeeded", "retried", "failed", "given_back", "lost")


class Read:
    """The metrics of one queue, whose name no other test has."""

    def __init__(self, queue: str) -> None:
        self.queue = queue

    def __call__(self, name: str, **labels: str) -> float:
        labels = {"queue": self.queue, "task": self.queue, **labels}
        return REGISTRY.get_sample_value(f"conquiet_jobs_{name}", labels) or 0.0

    def outcomes(self, **labels: str) -> dict[str, float]:
        found = {outcome: self("finished_total", outcome=outcome, **labels) for outcome in OUTCOMES}
        return {outcome: number for outcome, number in found.items() if number}


@pytest.fixture
def read() -> Read:
    return Read(f"metrics-{uuid4()}")


def whole(name: str) -> float:
    return REGISTRY.get_sample_value(f"conquiet_jobs_{name}") or 0.0


def test_jobs_are_counted_by_outcome_with_their_times(store: JobStore, read: Read) -> None:
    fails = {1: 1, 2: 9}  # job 1 fails once, job 2 always

    def handler(job: Job) -> None:
        if job.retries < fails.get(job.payload["n"], 0):
            raise ValueError

    claims, settles = whole("claim_seconds_count"), whole("settle_seconds_count")
    store.enqueue_many(read.queue, [NewJob({"n": n}, max_retries=2) for n in range(50)])
    counts = JobWorker(store, handler, queues=read.queue).run_until_idle(wait_for_delayed=True)
    assert read.outcomes() == {"succeeded": 49, "retried": 3, "failed": 1}
    assert (counts.succeeded, counts.failed) == (49, 4)
    assert read("enqueued_total") == 50
    assert read("retries_total") == read("redelivered_total") == 3
    for histogram in ("wait_seconds", "run_seconds"):
        assert read(f"{histogram}_count") == 53
        assert read(f"{histogram}_bucket", le="+Inf") == 53
        assert read(f"{histogram}_bucket", le="86400.0") == 53
    assert read("running") == 0
    assert whole("claim_seconds_count") > claims
    assert whole("settle_seconds_count") > settles


def test_the_wait_begins_when_a_job_is_due(store: JobStore, read: Read) -> None:
    store.enqueue(read.queue, {}, delay=0.3)
    JobWorker(store, lambda job: None, queues=read.queue).run_until_idle(wait_for_delayed=True)
    # Not 0.3 s and more. On a busy machine it can be found late, so that only the sum with the delay is certain.
    (job,) = store.list(queue=read.queue)
    began = job.attempts[0].started_at
    assert read("wait_seconds_sum") <= (job.attempts[0].ended_at - job.enqueued_at).total_seconds() - 0.29
    assert began > job.enqueued_at


def test_running_jobs_can_be_seen(memory: JobStore, read: Read, start: Start) -> None:
    go_on = threading.Event()
    memory.enqueue_many(read.queue, [{}, {}, {}])
    running = start(JobWorker(memory, lambda job: go_on.wait(60), queues=read.queue, concurrency=2))
    until(lambda: read("running") == 2)
    go_on.set()
    until(lambda: read.outcomes() == {"succeeded": 3})
    assert read("running") == 0
    running.stop()


def test_a_lost_lease_and_a_refused_result_are_counted(memory: JobStore, read: Read) -> None:
    def handler(job: Job, context: JobContext) -> None:
        memory.ack(job)  # so that the ack of the worker is stale

    memory.enqueue(read.queue, {})
    counts = JobWorker(memory, handler, queues=read.queue).run_until_idle()
    assert counts.lost == 1
    assert read.outcomes() == {"lost": 1}
    assert read("leases_lost_total") == read("stale_settles_total") == 1


def test_duplicates_are_not_enqueued_and_not_counted(memory: JobStore, read: Read) -> None:
    memory.enqueue(read.queue, {}, id="a")
    new = [NewJob({}, id="a"), NewJob({}, id="b"), NewJob({}, id="b")]
    assert memory.enqueue_many(read.queue, new, on_duplicate="skip") == ["b"]
    assert read("enqueued_total") == 2


def test_the_tasks_of_an_app_are_labels_and_no_others(tmp_path: Any, read: Read) -> None:
    with Conquiet(f"sqlite:///{tmp_path}/jobs.db") as app:

        @app.task(queue=read.queue)
        def greet(name: str) -> None: ...

        greet.enqueue("Ada")
        assert read("enqueued_total", task=greet.name) == 1
        app.store.enqueue_many(read.queue, [{"task": f"made up {n}", "arguments": {}} for n in range(30)])
        app.worker(unknown_after=0).run_until_idle(wait_for_delayed=True)
    assert read.outcomes(task=greet.name) == {"succeeded": 1}
    unknown = read.outcomes(task="(unknown)")
    unknown.pop("given_back", None)  # a busy machine may make some of them wait too long
    assert unknown == {"failed": 30}
    assert read.outcomes(task="made up 1") == {}


def test_connections_in_use(clean_postgres: str) -> None:
    name = "connections_in_use"
    with open_store(clean_postgres) as store:
        before = whole(name)
        seen = []

        def handler(job: Job, context: JobContext) -> None:
            context.connection.execute("SELECT 1")
            seen.append(whole(name) - before)

        store.enqueue("pool", {})
        JobWorker(store, handler, queues="pool").run_until_idle()
        assert seen
        assert seen[0] >= 1
        until(lambda: whole(name) == before)  # the notification of the enqueue may still be on its way


class Raises(AttemptListener):
    def __getattribute__(self, name: str) -> Any:
        found = object.__getattribute__(self, name)
        if not callable(found) or name.startswith("_"):
            return found

        def raises(*facts: Any) -> Any:
            raise RuntimeError(name)

        return raises


def test_a_listener_that_raises_is_logged_once_and_does_no_harm(
    memory: JobStore, read: Read, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = AttemptEvents.__init__
    monkeypatch.setattr(AttemptEvents, "__init__", lambda self, *others: made(self, Raises(), *others))
    caplog.set_level(logging.INFO, "conquiet.jobs")
    memory.enqueue_many(read.queue, [NewJob({"n": n}, max_retries=0) for n in range(3)])
    counts = JobWorker(memory, lambda job: 1 / job.payload["n"], queues=read.queue).run_until_idle()
    assert (counts.succeeded, counts.failed) == (2, 1)
    assert read.outcomes() == {"succeeded": 2, "failed": 1}  # those after it are told all the same
    said = [record for record in caplog.records if "Raises failed at an event" in record.message]
    assert len(said) == 1
    assert "RuntimeError" in (said[0].exc_text or "")


@pytest.fixture
def debug() -> Iterator[None]:
    logger = logging.getLogger("conquiet.jobs")
    before = logger.level
    logger.setLevel(logging.DEBUG)
    yield
    logger.setLevel(before)


@pytest.mark.usefixtures("debug")
def test_starts_are_told_only_if_somebody_wants_them() -> None:
    events = AttemptEvents(AttemptListener())
    events.claimed([], 0.0)
    assert not events.tells_starts
    events = AttemptEvents(AttemptListener(), AttemptLog("w", None), AttemptListener())
    events.claimed([], 0.0)
    assert events.tells_starts
