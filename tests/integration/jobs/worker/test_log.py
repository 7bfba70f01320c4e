"""What a worker logs of each attempt: a line for people, fields for machines, and no secrets in either."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from conquiet.errors import TaskMismatchError
from conquiet.jobs import Attempt, Job, JobContext, JobState, JobStore, JobWorker, Nack
from tests.integration.jobs.background import Running, until
from tests.integration.jobs.handlers import CONNECT

Start = Callable[[JobWorker], Running]
FIELDS = ("job_id", "task", "queue", "attempt", "worker", "duration", "outcome", "correlation_id")
LINE = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")


class Kept(logging.Handler):
    """Keeps the records of attempts."""

    def __init__(self) -> None:
        super().__init__()
        self.all: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        if hasattr(record, "outcome"):
            self.all.append(record)

    def fields(self, *names: str) -> list[tuple[Any, ...]]:
        return [tuple(getattr(record, name) for name in names) for record in self.all]


@pytest.fixture
def log() -> Iterator[Kept]:
    logger, kept = logging.getLogger("conquiet.jobs"), Kept()
    before = logger.level
    logger.setLevel(logging.DEBUG)
    logger.addHandler(kept)
    yield kept
    logger.removeHandler(kept)
    logger.setLevel(before)


async def nothing_async(job: Job) -> None: ...


def nothing(job: Job) -> None: ...


NOTHING = {"thread": nothing, "process": nothing, "async": nothing_async}


@pytest.mark.parametrize("isolation", CONNECT)
def test_a_failure_is_shown_with_its_traceback(store: JobStore, log: Kept, isolation: str) -> None:
    job = store.enqueue("shop", {"customer": 4711}, max_retries=1, correlation_id="order-7")
    before = datetime.now(UTC)
    worker = JobWorker(store, CONNECT[isolation], queues="shop", isolation=isolation, worker="anna")
    worker.run_until_idle(wait_for_delayed=True)
    assert log.fields("levelname", "outcome", "attempt") == [
        ("DEBUG", "started", 1),
        ("WARNING", "will be retried", 1),
        ("DEBUG", "started", 2),
        ("ERROR", "failed", 2),
    ]
    stored = store.get(job.id)
    assert stored is not None
    for record, attempt in zip(log.all[1::2], stored.attempts, strict=True):
        known = ("shop", job.id, "shop", "anna", "order-7", "LookupError", 2)
        names = ("task", "job_id", "queue", "worker", "correlation_id", "error_type", "max_attempts")
        assert tuple(record.__dict__[name] for name in names) == known
        assert attempt.error_type == "LookupError"
        assert attempt.traceback == record.__dict__["traceback"] == record.exc_text
        assert record.exc_info is None
        assert record.__dict__["duration"] > 0
        _is_readable(attempt)
        line = LINE.format(record)
        assert f"LookupError: no customer 4711 (job {job.id}, attempt {attempt.number} of 2; " in line
        assert line.endswith(f"\n{attempt.traceback}")
        assert "hunter2" not in line + json.dumps(record.__dict__, default=repr)
    retried, failed = log.all[1], log.all[3]
    assert before < datetime.fromisoformat(retried.__dict__["retry_at"]) <= datetime.now(UTC)
    assert "next retry at 20" in retried.getMessage()
    assert failed.__dict__["retry_at"] is None
    assert "it is not retried" in failed.getMessage()


def _is_readable(attempt: Attempt) -> None:
    """It begins in the handler, and has the cause, but no password and no local variable."""
    assert attempt.traceback is not None
    lines = attempt.traceback.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert "handlers.py" in lines[1]
    assert "ConnectionError: no answer from postgresql://app:***@db/shop" in lines
    assert "tried with password=***" in lines
    assert lines[-1] == "LookupError: no customer 4711"


@pytest.mark.parametrize("isolation", NOTHING)
def test_a_success_is_one_line_with_its_duration(store: JobStore, log: Kept, isolation: str) -> None:
    job = store.enqueue("shop", {"customer": "a secret"}, correlation_id="order-7")
    JobWorker(store, NOTHING[isolation], queues="shop", isolation=isolation, worker="anna").run_until_idle()
    assert log.fields(*(name for name in FIELDS if name != "duration")) == [
        (job.id, "shop", "shop", 1, "anna", "started", "order-7"),
        (job.id, "shop", "shop", 1, "anna", "succeeded", "order-7"),
    ]
    assert [record.levelname for record in log.all] == ["DEBUG", "INFO"]
    started, succeeded = log.all
    assert started.__dict__["duration"] is None
    duration = succeeded.__dict__["duration"]
    assert duration > 0
    assert succeeded.getMessage() == f"shop succeeded in {duration:.3f} s (job {job.id}, attempt 1 of 4)"
    assert not any("a secret" in repr(record.__dict__) for record in log.all)


def test_who_listens_to_failures_hears_nothing_else(memory: JobStore, log: Kept) -> None:
    memory.enqueue_many("shop", [{"customer": n} for n in range(20)])
    logging.getLogger("conquiet.jobs").setLevel(logging.WARNING)
    JobWorker(memory, nothing, queues="shop").run_until_idle()
    assert log.all == []


def test_nothing_is_logged_of_what_others_settled_meanwhile(durable: JobStore, log: Kept) -> None:
    """The job fails for good by another hand: the worker's own verdict does not stand, and is told as a lost lease."""
    job = durable.enqueue("shop", {})

    def handle(mine: Job) -> None:
        durable.nack_many([Nack(mine, "somebody else was quicker", retryable=False)])

    JobWorker(durable, handle, queues="shop").run_until_idle()
    assert log.fields("job_id", "levelname", "outcome") == [
        (job.id, "DEBUG", "started"),
        (job.id, "INFO", "lease lost"),
    ]
    assert "its result is discarded: StaleLeaseError: ack of job" in log.all[1].getMessage()


def test_what_a_stop_gives_back_is_told(memory: JobStore, log: Kept, start: Start) -> None:
    memory.enqueue_many("shop", [{}] * 3)
    began, go_on = threading.Semaphore(0), threading.Event()

    def handle(job: Job) -> None:
        began.release()
        assert go_on.wait(20)

    running = start(JobWorker(memory, handle, queues="shop", concurrency=1, prefetch=2))
    assert began.acquire(timeout=20)
    running.worker.stop()
    until(lambda: memory.stats()["shop"].ready == 2)
    go_on.set()
    running.end()
    ends = [record for record in log.all if record.__dict__["outcome"] != "started"]
    assert sorted((record.levelname, record.__dict__["outcome"]) for record in ends) == [
        ("DEBUG", "given back"),
        ("DEBUG", "given back"),
        ("INFO", "succeeded"),
    ]


def test_a_job_for_other_code_is_given_back_with_the_reason(memory: JobStore, log: Kept) -> None:
    def handle(job: Job) -> None:
        raise TaskMismatchError("this code is too old")

    memory.enqueue("shop", {})
    JobWorker(memory, handle, queues="shop").run_until_idle()
    assert log.fields("levelname", "outcome") == [("DEBUG", "started"), ("INFO", "given back")]
    assert "TaskMismatchError: this code is too old" in log.all[1].getMessage()


def test_what_is_not_retryable_says_why_it_is_not_retried(memory: JobStore, log: Kept) -> None:
    def handle(job: Job) -> None:
        raise TaskMismatchError("no such thing")

    memory.enqueue("shop", {})
    JobWorker(memory, handle, queues="shop", unknown_after=0).run_until_idle()
    assert log.all[-1].levelname == "ERROR"
    assert (
        "attempt 1 of 4; it is not retried, because another attempt would fail, too)"
        in log.all[-1].getMessage()
    )


class Broken(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        raise RuntimeError("no space left")


@pytest.mark.parametrize("isolation", ["thread", "async"])
def test_a_logging_handler_that_raises_does_no_harm(
    memory: JobStore, log: Kept, isolation: str, capsys: pytest.CaptureFixture[str]
) -> None:
    memory.enqueue_many("shop", [{"customer": n} for n in range(5)])
    memory.enqueue_many("fine", [{}] * 5)
    broken = Broken()
    logging.getLogger("conquiet.jobs").addHandler(broken)
    try:
        counts = JobWorker(
            memory, {"shop": CONNECT[isolation], "fine": NOTHING[isolation]}, isolation=isolation
        ).run_until_idle(wait_for_delayed=True)
    finally:
        logging.getLogger("conquiet.jobs").removeHandler(broken)
    assert (counts.succeeded, counts.failed, counts.lost) == (5, 20, 0)
    said = capsys.readouterr().err
    assert "fine succeeded in " in said
    assert "(a logging handler raised RuntimeError)" in said


def test_the_exception_is_not_changed(memory: JobStore, log: Kept) -> None:
    error = ConnectionError("postgresql://app:hunter2@db/shop")
    raised: list[tuple[Any, ...]] = []

    def handle(job: Job) -> None:
        try:
            raise error
        finally:
            raised.append((error.args, dict(error.__dict__)))

    memory.enqueue("shop", {}, max_retries=0)
    JobWorker(memory, handle, queues="shop").run_until_idle()
    assert raised == [(error.args, error.__dict__)]
    assert "hunter2" not in (log.all[-1].exc_text or "")


def test_names_cannot_forge_a_line(memory: JobStore, log: Kept) -> None:
    def handle(job: Job) -> None:
        raise ValueError("first\r\x1b[31m\n2026-01-01 00:00:00,000 INFO all is well")

    memory.enqueue("shop\nINFO all is well", {}, id="a\nb", max_retries=0)
    JobWorker(memory, handle, queues="shop\nINFO all is well").run_until_idle()
    record = log.all[-1]
    assert "\n" not in record.getMessage()
    assert not {"\r", "\x1b"} & {*LINE.format(record)}


def test_an_error_of_five_megabytes_is_a_short_line(memory: JobStore, log: Kept) -> None:
    def handle(job: Job) -> None:
        raise ValueError("password=hunter2 " * 300_000)

    memory.enqueue("shop", {}, max_retries=0)
    JobWorker(memory, handle, queues="shop").run_until_idle()
    line = LINE.format(log.all[-1])
    assert len(line) < 10_000
    assert "hunter2" not in line


def test_a_record_factory_of_the_application_makes_every_record(memory: JobStore, log: Kept) -> None:
    before = logging.getLogRecordFactory()
    made: list[int] = []

    def factory(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = before(*args, **kwargs)
        record.number = len(made)
        made.append(1)
        return record

    memory.enqueue_many("shop", [{}] * 10)
    logging.setLogRecordFactory(factory)
    try:
        JobWorker(memory, nothing, queues="shop").run_until_idle()
    finally:
        logging.setLogRecordFactory(before)
    numbers = [number for (number,) in log.fields("number")]
    assert len(numbers) == len(set(numbers)) == 20


def test_an_attempt_whose_transaction_acknowledged_it_is_told_too(durable: JobStore, log: Kept) -> None:
    def handle(job: Job, context: JobContext) -> None:
        assert context.connection is not None

    job = durable.enqueue("shop", {})
    JobWorker(durable, handle, queues="shop").run_until_idle()
    assert log.fields("outcome") == [("started",), ("succeeded",)]
    stored = durable.get(job.id)
    assert stored is not None
    assert stored.state is JobState.SUCCEEDED


def linger_a_little(job: Job) -> None:
    threading.Event().wait(0.3)


async def wait_forever(job: Job) -> None:
    await asyncio.sleep(600)


@pytest.mark.parametrize(("isolation", "handler"), [("thread", linger_a_little), ("async", wait_forever)])
def test_a_time_limit_says_all_without_a_traceback(
    memory: JobStore, log: Kept, isolation: str, handler: Any
) -> None:
    memory.enqueue("shop", {}, max_retries=0)
    JobWorker(memory, handler, queues="shop", isolation=isolation, execution_timeout=0.1).run_until_idle()
    record = log.all[-1]
    assert (record.__dict__["error_type"], record.__dict__["category"]) == ("CallTimeoutError", "TIMEOUT")
    assert record.exc_text is None
    assert "ran past its limit of 0.1 s" in record.getMessage()
