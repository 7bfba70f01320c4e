"""Whatever jobs, their errors and the application's logging do, the worker goes on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from conquiet.local import (
    LAST_EXCEPTIONS,
    CircuitBreaker,
    PriorityDelayQueue,
    QueueSettings,
    Worker,
)
from tests.unit.local.taking import wait_for


class Raising(logging.Handler):
    """A handler of the application, whose service is down."""

    def emit(self, record: logging.LogRecord) -> None:
        raise ConnectionError("the log service is away")


@pytest.fixture
def broken_logging() -> Iterator[None]:
    logger, handler = logging.getLogger("conquiet"), Raising()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield
    logger.setLevel(level)
    logger.removeHandler(handler)


@pytest.fixture(autouse=True)
def _forget_exceptions() -> Iterator[None]:
    LAST_EXCEPTIONS.clear()
    yield
    LAST_EXCEPTIONS.clear()


def served(*jobs: Any, **options: Any) -> list[Any]:
    """What a worker has done of `jobs`; a job that is an exception is raised."""
    queue, done = PriorityDelayQueue(), list[Any]()

    def handle(job: Any, *session: Any) -> None:
        if issubclass(type(job), BaseException):
            raise job
        if isinstance(job, SpitefulJob):
            raise ValueError("no")
        done.append(job)

    for job in (*jobs, "last"):
        queue.enqueue(job)
    with Worker(queue, handle, **options):
        wait_for(lambda: "last" in done)
    return done


@pytest.mark.clause("W-14")
@pytest.mark.usefixtures("broken_logging")
def test_a_logging_handler_that_raises(capfd: pytest.CaptureFixture[str]) -> None:
    assert served("first", ValueError("bad"), "second") == ["first", "second", "last"]
    assert [entry["error"] for entry in LAST_EXCEPTIONS] == ["bad"]
    written = capfd.readouterr().err
    assert (
        "conquiet.local: job failed: correlation_id=None priority=normal seq=1 error=ValueError: bad"
        in written
    )
    assert "(a logging handler raised ConnectionError)" in written


@pytest.mark.clause("W-03")
@pytest.mark.usefixtures("broken_logging")
def test_the_queue_and_the_breaker_do_not_raise_what_a_logging_handler_raises() -> None:
    queue = PriorityDelayQueue(QueueSettings(warn_depth=1))
    queue.enqueue("a")  # writes a warning
    assert queue.depth == 1
    breaker = CircuitBreaker(failure_threshold=1)
    breaker.record_failure()
    assert breaker.state == "OPEN"


@dataclass(frozen=True)
class Frozen(Exception):
    """An exception to which nothing can be added."""

    reason: str = "frozen"


class RaisingNotes(Exception):
    @property
    def __notes__(self) -> Any:  # type: ignore[override]
        raise RuntimeError("no notes")


class OddNotes(Exception):
    __notes__: Any = 5


class NoTraceback(Exception):
    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)


def caused(cause: BaseException) -> Exception:
    error = ValueError("its cause is the problem")
    error.__cause__ = cause
    return error


class SpitefulText:
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class SpitefulMapping(dict[str, Any]):
    def __iter__(self) -> Any:
        raise RuntimeError("no names")


class SpitefulJob:
    def __init__(self, **fields: Any) -> None:
        self.log_fields: Any = {"report": SpitefulText()}
        self.correlation_id: Any = SpitefulText()
        self.__dict__.update(fields)


class Session:
    """A session whose end fails, too."""

    closed = 0

    def rollback(self) -> None:
        raise OSError("no rollback")

    def close(self) -> None:
        Session.closed += 1
        raise OSError("no close")


ERRORS: list[Callable[[], BaseException]] = [
    Frozen,
    RaisingNotes,
    OddNotes,
    NoTraceback,
    lambda: caused(RaisingNotes()),
    lambda: caused(NoTraceback()),
]
any_error = pytest.mark.parametrize("make", ERRORS, ids=range(len(ERRORS)))


@pytest.mark.clause("W-14")
@any_error
def test_exceptions_that_cannot_be_shown(
    make: Callable[[], BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    error = make()
    before = dict(object.__getattribute__(error, "__dict__"))
    assert served("first", error) == ["first", "last"]
    assert [entry["type"] for entry in LAST_EXCEPTIONS] == [type(error).__name__]
    assert "job failed: " in caplog.text
    assert object.__getattribute__(error, "__dict__") == before  # it is the handler's, and is not changed


@pytest.mark.clause("W-14", "W-15")
@any_error
def test_a_session_whose_end_fails_is_closed_whatever_was_raised(
    make: Callable[[], BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    error = make()
    Session.closed = 0
    queue = PriorityDelayQueue()
    queue.enqueue(error)
    queue.shutdown()

    def handle(job: Exception, session: Session) -> None:
        raise job

    with Worker(queue, handle, session_factory=Session) as worker:
        assert worker.join(10)
    assert Session.closed == 1
    assert [entry["type"] for entry in LAST_EXCEPTIONS] == [type(error).__name__]
    assert "its session was not rolled back: OSError: no rollback" in caplog.text
    assert "its session was not closed: OSError: no close" in caplog.text


@pytest.mark.clause("W-14")
@pytest.mark.parametrize(
    "job", [SpitefulJob(), SpitefulJob(log_fields=SpitefulMapping(a=1)), SpitefulJob(log_fields={5: 1})]
)
def test_jobs_that_cannot_be_shown(job: SpitefulJob, caplog: pytest.LogCaptureFixture) -> None:
    assert served(job) == ["last"]
    assert [entry["error"] for entry in LAST_EXCEPTIONS] == ["no"]
    assert "job failed: " in caplog.text
