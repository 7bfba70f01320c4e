"""What the queue refuses, and with which error."""

from __future__ import annotations

import logging
import math
from typing import Any

import pytest

from conquiet.local import (
    LocalConfigError,
    LocalQueueError,
    PriorityDelayQueue,
    QueueFullError,
    QueueSettings,
    QueueShutdownError,
    UnknownPriorityError,
)
from conquiet.testing import ManualClock

NOTHING = {"depth": 0, "ready": 0, "scheduled": 0, "shutdown": False}


@pytest.mark.clause("W-03")
@pytest.mark.parametrize("label", ["urgent", "", "HIGH", None, 0, ["high"]])
def test_an_unknown_priority_is_refused_with_those_that_are_known(label: Any) -> None:
    queue = PriorityDelayQueue()
    with pytest.raises(UnknownPriorityError, match="use one of high, normal, low, or add it") as caught:
        queue.enqueue("job", label)
    assert repr(label) in str(caught.value)
    assert "nothing was enqueued" in str(caught.value)
    assert isinstance(caught.value, ValueError)
    assert queue.snapshot() == NOTHING


@pytest.mark.clause("W-03")
def test_a_full_queue_refuses_until_there_is_room() -> None:
    clock = ManualClock()
    queue = PriorityDelayQueue(QueueSettings(max_in_memory=3), clock)
    queue.enqueue(1)
    queue.enqueue(2, delay_seconds=10)  # delayed items take room, too
    queue.enqueue(3)
    for delay in (0.0, 10.0):
        with pytest.raises(
            QueueFullError, match="holds 3 items.*Try again later, add workers, or raise"
        ) as caught:
            queue.enqueue(4, "high", delay)
        assert caught.value.depth == 3
    assert queue.snapshot() == {"depth": 3, "ready": 2, "scheduled": 1, "shutdown": False}
    assert queue.dequeue().job == 1
    queue.enqueue(4, "high")
    assert queue.dequeue().job == 4


@pytest.mark.clause("W-03")
def test_after_shutdown_nothing_is_accepted() -> None:
    queue = PriorityDelayQueue(QueueSettings(max_in_memory=1))
    queue.enqueue("accepted")
    queue.shutdown()
    queue.shutdown()  # a second call does no harm
    with pytest.raises(QueueShutdownError, match="make a new PriorityDelayQueue"):
        queue.enqueue("late")  # not QueueFullError: waiting would not help
    assert queue.snapshot() == {"depth": 1, "ready": 1, "scheduled": 0, "shutdown": True}
    assert queue.dequeue().job == "accepted"
    assert queue.dequeue() is None


@pytest.mark.clause("W-03")
def test_each_refusal_is_its_own_error_in_one_family() -> None:
    errors = [UnknownPriorityError, QueueFullError, QueueShutdownError]
    assert all(issubclass(error, LocalQueueError) for error in errors)
    for error in errors:
        assert not any(issubclass(error, other) for other in errors if other is not error)


@pytest.mark.parametrize("delay", [math.nan, math.inf, -math.inf, 1e300, "5", "", True, None, [], [1.0]])
def test_a_delay_that_is_no_time_is_refused(delay: Any) -> None:
    queue = PriorityDelayQueue()
    with pytest.raises(LocalConfigError, match="delay_seconds must be a number of seconds, not"):
        queue.enqueue("job", delay_seconds=delay)
    assert queue.snapshot() == NOTHING


@pytest.mark.parametrize("timeout", [math.nan, "5", 1e300])
def test_a_timeout_that_is_no_time_is_refused(timeout: Any) -> None:
    with pytest.raises(LocalConfigError, match="timeout must be a number of seconds, not"):
        PriorityDelayQueue().dequeue(timeout=timeout)


@pytest.mark.clause("W-04")
def test_reaching_warn_depth_is_said_once_for_each_crossing(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    queue = PriorityDelayQueue(QueueSettings(max_in_memory=100, warn_depth=3), clock)

    def said() -> list[logging.LogRecord]:
        return [record for record in caplog.records if record.name == "conquiet.local"]

    queue.enqueue(1)
    queue.enqueue(2, delay_seconds=60)
    assert said() == []
    for job in range(3, 20):
        queue.enqueue(job)
    (warning,) = said()
    assert warning.levelno == logging.WARNING
    assert "holds 3 items (warn_depth)" in warning.getMessage()
    assert "at 100 it refuses" in warning.getMessage()
    assert (warning.event, warning.depth) == ("queue_backlog", 3)  # type: ignore[attr-defined]
    for _ in range(16):
        queue.dequeue()
    assert queue.snapshot()["depth"] == 3
    queue.enqueue("still above")
    assert len(said()) == 1
    queue.dequeue()
    queue.dequeue()
    queue.enqueue("crossed again")
    assert len(said()) == 2
    queue.purge()
    for job in range(5):
        queue.enqueue(job, delay_seconds=1)
    assert len(said()) == 3
    queue.purge()
    queue.enqueue("a")
    item = queue.dequeue()
    assert item is not None
    queue.enqueue("b")
    queue.enqueue("c")
    assert len(said()) == 3
    queue.put_back(item)
    assert len(said()) == 4


@pytest.mark.clause("W-04")
def test_a_log_handler_may_look_at_the_queue(caplog: pytest.LogCaptureFixture) -> None:
    queue = PriorityDelayQueue(QueueSettings(warn_depth=1))
    seen = []

    class Looking(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.append(queue.snapshot()["depth"])

    logger, handler = logging.getLogger("conquiet.local"), Looking()
    logger.addHandler(handler)
    try:
        queue.enqueue("job")
    finally:
        logger.removeHandler(handler)
    assert seen == [1]
