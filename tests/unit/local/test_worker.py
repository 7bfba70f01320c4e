"""The worker thread and the pool, on a clock that the test moves."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from conquiet.local import (
    LAST_EXCEPTIONS,
    LocalConfigError,
    PriorityDelayQueue,
    Worker,
    WorkerPool,
)
from conquiet.local.failures import MAX_REMEMBERED
from tests.unit.local.taking import NotedClock, wait_for


@dataclass(frozen=True)
class Job:
    affiliate_report_id: int
    correlation_id: str | None = None

    @property
    def log_fields(self) -> dict[str, int]:
        return {"report_id": self.affiliate_report_id}


@pytest.fixture
def clock() -> NotedClock:
    return NotedClock()


@pytest.fixture
def queue(clock: NotedClock) -> PriorityDelayQueue:
    return PriorityDelayQueue(clock=clock)


@pytest.fixture(autouse=True)
def _forget_exceptions() -> Iterator[None]:
    LAST_EXCEPTIONS.clear()
    yield
    LAST_EXCEPTIONS.clear()


def failing(job: Any) -> None:
    raise ValueError(f"no such report: {job.affiliate_report_id}")


@pytest.mark.clause("W-13")
def test_it_is_one_daemon_thread_that_waits_five_seconds_at_a_time(
    queue: PriorityDelayQueue, clock: NotedClock
) -> None:
    before = set(threading.enumerate())
    worker = Worker(queue, print)
    worker.start()
    (thread,) = set(threading.enumerate()) - before
    assert thread.daemon
    clock.wait_for_sleepers(1)
    clock.advance(5)
    wait_for(lambda: clock.waits == [5.0, 5.0])
    clock.wait_for_sleepers(1)
    assert worker.stop(10)
    assert not thread.is_alive()


@pytest.mark.clause("W-13")
def test_another_poll_timeout(queue: PriorityDelayQueue, clock: NotedClock) -> None:
    with Worker(queue, print, poll_timeout=0.5):
        clock.wait_for_sleepers(1)
    assert clock.waits == [0.5]  # stop() did not wait for it to pass


@pytest.mark.clause("W-13")
def test_a_worker_that_is_stopped_works_off_what_is_ready_and_logs_what_stays(
    queue: PriorityDelayQueue, clock: NotedClock, caplog: pytest.LogCaptureFixture
) -> None:
    begun, go, done = threading.Event(), threading.Event(), []

    def handler(job: int) -> None:
        begun.set()
        assert go.wait(10)
        done.append(job)

    worker = Worker(queue, handler)
    for job in range(5):
        queue.enqueue(job)
    queue.enqueue("delayed", delay_seconds=3600)
    queue.enqueue("delayed too", "high", delay_seconds=7200)
    worker.start()
    assert begun.wait(10)
    assert not worker.stop(timeout=0.01)  # it is working
    assert worker.is_alive()
    go.set()
    assert worker.stop(10)
    assert done == [0, 1, 2, 3, 4]
    assert queue.snapshot()["scheduled"] == 2
    (said,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert "2 delayed jobs stay in the queue, which is memory of this process" in said.getMessage()
    assert (said.event, said.scheduled) == ("worker_stopped", 2)  # type: ignore[attr-defined]


@pytest.mark.clause("W-13")
def test_with_nothing_left_it_ends_without_a_word(
    queue: PriorityDelayQueue, clock: NotedClock, caplog: pytest.LogCaptureFixture
) -> None:
    with Worker(queue, print):
        clock.wait_for_sleepers(1)
    assert caplog.records == []


@pytest.mark.clause("W-13")
def test_it_ends_by_itself_when_the_queue_is_shut_down_and_everything_was_delivered(
    queue: PriorityDelayQueue, clock: NotedClock
) -> None:
    done: list[str] = []
    queue.enqueue("delayed", delay_seconds=3)
    worker = Worker(queue, done.append)
    worker.start()
    queue.enqueue("ready")
    wait_for(lambda: done == ["ready"])
    queue.shutdown()
    clock.wait_for_sleepers(1)
    assert worker.is_alive()
    clock.advance(3)
    assert worker.join(10)
    assert done == ["ready", "delayed"]


@pytest.mark.clause("W-13")
def test_it_may_be_stopped_from_its_own_handler(queue: PriorityDelayQueue) -> None:
    ended: list[bool] = []
    worker = Worker(queue, lambda job: ended.append(worker.stop()))
    queue.enqueue("first")
    queue.enqueue("second")  # it is ready, so it is still run
    worker.start()
    assert worker.join(10)
    assert ended == [False, False]


def test_a_worker_runs_once(queue: PriorityDelayQueue) -> None:
    worker = Worker(queue, print)
    with worker, pytest.raises(LocalConfigError, match="create a new one"):
        worker.start()
    with pytest.raises(LocalConfigError, match="create a new one"):
        worker.start()
    never = Worker(queue, print)
    assert never.stop()
    with pytest.raises(LocalConfigError, match="create a new one"):
        never.start()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"handler": None}, "handler must be a function, not None"),
        ({"poll_timeout": 0}, "poll_timeout must be a number of seconds, above 0"),
        ({"poll_timeout": float("nan")}, "poll_timeout must be a number of seconds, above 0"),
    ],
)
def test_wrong_arguments_are_refused(queue: PriorityDelayQueue, options: dict[str, Any], named: str) -> None:
    with pytest.raises(LocalConfigError, match=named):
        Worker(queue, **{"handler": print, **options})
    with pytest.raises(LocalConfigError, match=named):
        WorkerPool(queue, size=2, **{"handler": print, **options})


def test_a_coroutine_function_is_refused(queue: PriorityDelayQueue) -> None:
    async def handler(job: object) -> None: ...

    with pytest.raises(LocalConfigError, match="handler is a coroutine function"):
        Worker(queue, handler)


def test_a_generator_function_is_refused_and_a_generator_is_a_failure(queue: PriorityDelayQueue) -> None:
    def handler(job: object) -> Iterator[None]:
        yield

    with pytest.raises(LocalConfigError, match="handler is a generator function"):
        Worker(queue, handler)
    worker = Worker(queue, lambda job: handler(job))
    queue.enqueue("lazy")
    worker.start()
    assert worker.stop(30)
    assert "returned a generator, and nobody runs that" in str(LAST_EXCEPTIONS[-1])


@pytest.mark.clause("W-12", "W-14")
def test_a_job_that_fails_is_logged_and_remembered_and_the_worker_goes_on(
    queue: PriorityDelayQueue, caplog: pytest.LogCaptureFixture
) -> None:
    done: list[int] = []

    def handler(job: Job) -> None:
        if job.affiliate_report_id == 7:
            failing(job)
        done.append(job.affiliate_report_id)

    queue.enqueue(Job(7, "request-42"), "high")
    queue.enqueue(Job(8))
    with Worker(queue, handler):
        wait_for(lambda: done == [8])
    assert LAST_EXCEPTIONS == [{"report_id": 7, "error": "no such report: 7", "type": "ValueError"}]
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("conquiet.local", logging.ERROR)
    expected = {
        "event": "job_failed",
        "report_id": 7,
        "correlation_id": "request-42",
        "priority": "high",
        "seq": 0,
        "error": "no such report: 7",
        "error_type": "ValueError",
    }
    assert {name: getattr(record, name) for name in expected} == expected
    said = record.getMessage()
    assert said.startswith(
        "job failed: report_id=7 correlation_id='request-42' priority=high seq=0 error=ValueError: no such report: 7"
    )
    assert "in failing" in said  # where it happened


@pytest.mark.clause("W-12")
def test_the_correlation_id_is_in_the_line_of_a_job_that_is_done(
    queue: PriorityDelayQueue, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "conquiet.local")
    queue.enqueue(Job(1, "request-43"))
    with Worker(queue, lambda job: None):
        pass
    (record,) = caplog.records
    assert (record.event, record.correlation_id) == ("job_done", "request-43")  # type: ignore[attr-defined]
    assert "correlation_id='request-43'" in record.getMessage()


class Unshowable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.clause("W-14")
@pytest.mark.parametrize(
    ("raised", "remembered"),
    [
        (SystemExit(3), {"type": "SystemExit", "error": "3"}),
        (KeyboardInterrupt(), {"type": "KeyboardInterrupt", "error": ""}),
        (
            RuntimeError("cannot reach postgresql://ann:hunter2@db/x"),
            {"type": "RuntimeError", "error": "cannot reach postgresql://ann:***@db/x"},
        ),
        (Unshowable(), {"type": "Unshowable", "error": "(its text cannot be shown: RuntimeError)"}),
        (ValueError("x" * 100_000), {"type": "ValueError", "error": "x" * 8_192}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_whatever_a_job_raises_the_worker_goes_on(
    queue: PriorityDelayQueue,
    caplog: pytest.LogCaptureFixture,
    raised: BaseException,
    remembered: dict[str, str],
) -> None:
    def handler(job: object) -> None:
        if job == "bad":
            raise raised
        done.append(job)

    done: list[object] = []
    queue.enqueue("bad")
    queue.enqueue("good")
    with Worker(queue, handler):
        wait_for(lambda: done == ["good"])
    assert [dict(entry) for entry in LAST_EXCEPTIONS] == [remembered]
    assert "hunter2" not in caplog.text


class Order:
    """Says more of itself than a log record can take."""

    log_fields: ClassVar = {"order": 12, "error": "mine", "seq": -1, "message": "mine", "levelname": "mine"}


def test_a_job_says_what_identifies_it_and_cannot_hide_the_failure(
    queue: PriorityDelayQueue, caplog: pytest.LogCaptureFixture
) -> None:
    def handler(job: Order) -> None:
        raise ValueError("out of stock")

    queue.enqueue(Order())
    with Worker(queue, handler):
        wait_for(lambda: bool(LAST_EXCEPTIONS))
    assert LAST_EXCEPTIONS == [{"order": 12, "error": "out of stock", "type": "ValueError"}]
    (record,) = caplog.records
    assert record.getMessage().startswith(
        "job failed: order=12 correlation_id=None priority=normal seq=0 error"
    )
    assert (record.seq, record.levelname) == (0, "ERROR")  # type: ignore[attr-defined]


@pytest.mark.clause("W-14")
def test_only_the_last_exceptions_are_kept(queue: PriorityDelayQueue) -> None:
    for number in range(MAX_REMEMBERED + 50):
        queue.enqueue(Job(number))
    with WorkerPool(queue, failing, 1):
        wait_for(lambda: bool(LAST_EXCEPTIONS) and LAST_EXCEPTIONS[-1]["report_id"] == MAX_REMEMBERED + 49)
    assert isinstance(LAST_EXCEPTIONS, list)
    assert [entry["report_id"] for entry in LAST_EXCEPTIONS] == list(range(50, MAX_REMEMBERED + 50))


@pytest.mark.clause("W-16")
def test_a_pool_works_on_as_many_jobs_at_once_as_it_has_threads(
    queue: PriorityDelayQueue, clock: NotedClock, caplog: pytest.LogCaptureFixture
) -> None:
    together, done, lock = threading.Barrier(4), [], threading.Lock()

    def handler(job: int) -> None:
        together.wait(10)  # passed only when all four are here
        with lock:
            done.append((job, threading.current_thread().name))

    before = set(threading.enumerate())
    pool = WorkerPool(queue, handler, 4)
    pool.start()
    threads = set(threading.enumerate()) - before
    assert len(threads) == 4
    assert all(thread.daemon for thread in threads)
    for job in range(8):
        queue.enqueue(job)
    queue.enqueue("delayed", delay_seconds=3600)
    wait_for(lambda: len(done) == 8)
    assert pool.stop(10)
    assert not pool.is_alive()
    assert sorted(job for job, _ in done) == list(range(8))
    assert {name for _, name in done} == {f"conquiet worker-{number}" for number in (1, 2, 3, 4)}
    lines = [record.getMessage() for record in caplog.records]
    assert len([line for line in lines if "delayed jobs stay" in line]) == 1, lines  # one line for all four


@pytest.mark.clause("W-14", "W-16")
def test_a_pool_goes_on_when_jobs_fail(queue: PriorityDelayQueue) -> None:
    done: list[int] = []

    def handler(job: Job) -> None:
        if job.affiliate_report_id % 2:
            failing(job)
        done.append(job.affiliate_report_id)

    for number in range(40):
        queue.enqueue(Job(number))
    with WorkerPool(queue, handler, 3):
        wait_for(lambda: len(done) == 20 and len(LAST_EXCEPTIONS) == 20)
    assert sorted(done) == list(range(0, 40, 2))
    assert sorted(entry["report_id"] for entry in LAST_EXCEPTIONS) == list(range(1, 40, 2))


@pytest.mark.clause("W-16")
def test_a_pool_that_does_not_end_in_time_says_so(queue: PriorityDelayQueue) -> None:
    go = threading.Event()
    pool = WorkerPool(queue, lambda job: go.wait(10), 2)
    pool.start()
    queue.enqueue("slow")
    wait_for(lambda: queue.depth == 0)
    assert not pool.stop(timeout=0.01)
    go.set()
    assert pool.stop(10)


@pytest.mark.parametrize("size", [0, -1, 1.5, True])
def test_a_pool_needs_a_size(queue: PriorityDelayQueue, size: Any) -> None:
    with pytest.raises(LocalConfigError, match="size must be an int of at least 1"):
        WorkerPool(queue, print, size)
