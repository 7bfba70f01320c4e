"""The two example timelines of the document, to the millisecond, on a clock that the test moves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from conquiet.clock import Parker
from conquiet.local import PriorityDelayQueue, Worker
from tests.unit.local.taking import NotedClock, wait_for


@dataclass(frozen=True)
class Job:
    affiliate_report_id: int
    attempt: int = 1


class Timeline:
    """Records what happened when, in milliseconds of the clock. Its handlers take time on this clock."""

    def __init__(self, clock: NotedClock) -> None:
        self.clock = clock
        self.events: list[tuple[int, str]] = []

    def note(self, what: str) -> None:
        self.events.append((round(self.clock.monotonic() * 1000), what))

    def take(self, milliseconds: int) -> None:
        """Work this long: wait until the test has moved the clock."""
        self.clock.wait(Parker(), milliseconds / 1000)

    def advance(self, milliseconds: int) -> None:
        self.clock.wait_for_sleepers(1)
        self.clock.advance_to((round(self.clock.monotonic() * 1000) + milliseconds) / 1000)


@pytest.fixture
def timeline() -> Timeline:
    return Timeline(NotedClock())


@pytest.fixture
def queue(timeline: Timeline) -> Iterator[PriorityDelayQueue]:
    queue = PriorityDelayQueue(clock=timeline.clock)
    yield queue
    queue.shutdown()


@pytest.mark.clause("W-30")
def test_normal_flow(timeline: Timeline, queue: PriorityDelayQueue) -> None:
    def reconcile(job: Job) -> None:
        timeline.note(f"worker dequeues #{job.affiliate_report_id}")
        timeline.take(118)
        timeline.note("reconciliation complete (MATCHED)")

    timeline.note("enqueue report #101")
    item = queue.enqueue(Job(101), "normal")
    timeline.clock.advance_to(0.002)
    worker = Worker(queue, reconcile)
    worker.start()
    timeline.advance(118)
    wait_for(lambda: timeline.clock.waits == [0.118, 5.0])  # the queue is empty: a blocking wait
    timeline.clock.advance_to(0.121)
    assert timeline.events == [
        (0, "enqueue report #101"),
        (2, "worker dequeues #101"),
        (120, "reconciliation complete (MATCHED)"),
    ]
    assert item.priority_label == "normal"
    assert queue.snapshot() == {"depth": 0, "ready": 0, "scheduled": 0, "shutdown": False}
    assert worker.is_alive()
    assert worker.stop(10)


@pytest.mark.clause("W-30", "W-06", "W-13")
def test_delayed_retry(timeline: Timeline, queue: PriorityDelayQueue) -> None:
    half_an_hour = 30 * 60_000
    scheduled_retry_at: list[float] = []

    def reconcile(job: Job) -> None:
        timeline.note(f"attempt {job.attempt}")
        if job.attempt == 1:  # missing: a retry time is recorded, and nothing is enqueued here
            scheduled_retry_at.append(timeline.clock.time() + half_an_hour / 1000)

    queue.enqueue(Job(102))
    worker = Worker(queue, reconcile, poll_timeout=3600)
    worker.start()
    wait_for(lambda: bool(scheduled_retry_at))
    timeline.advance(10 * 60_000)
    assert queue.snapshot()["depth"] == 0  # not enqueued automatically
    # The scheduler runs ten minutes later.
    remaining = scheduled_retry_at[0] - timeline.clock.time()
    item = queue.enqueue(Job(102, attempt=2), delay_seconds=remaining)
    assert item.ready_at.timestamp() == scheduled_retry_at[0]
    assert queue.snapshot() == {"depth": 1, "ready": 0, "scheduled": 1, "shutdown": False}
    wait_for(lambda: timeline.clock.waits[-1] == 20 * 60)  # the worker waits exactly until then
    timeline.advance(20 * 60_000 - 1)
    assert queue.snapshot()["scheduled"] == 1
    timeline.advance(1)
    wait_for(lambda: len(timeline.events) == 2)
    assert timeline.events == [(0, "attempt 1"), (half_an_hour, "attempt 2")]
    assert worker.stop(10)
