"""Prometheus metrics: in the default registry, and never a cause of failure."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from uuid import uuid4

import prometheus_client
import pytest
from prometheus_client import REGISTRY

from conquiet.local import (
    LAST_EXCEPTIONS,
    CircuitBreakerRegistry,
    PriorityDelayQueue,
    Worker,
)
from conquiet.observe import local_metrics
from conquiet.observe.failsafe import say_once
from conquiet.testing import ManualClock
from tests.integration.local.programs import run_program

FAMILIES = {
    "conquiet_queue_depth": "gauge",
    "conquiet_dequeue_latency_histogram": "histogram",
    "conquiet_job_processing_duration": "histogram",
    "conquiet_job_failures": "counter",
    "conquiet_breaker_state_gauge": "gauge",
}


def value(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def queue(clock: ManualClock) -> Iterator[PriorityDelayQueue]:
    gc.collect()  # queues of other tests that are garbage must not count
    queue = PriorityDelayQueue(clock=clock)
    yield queue
    queue.purge()


@pytest.mark.clause("W-21")
def test_they_are_in_the_default_registry(queue: PriorityDelayQueue) -> None:
    registry = CircuitBreakerRegistry()  # held: the gauge shows the breakers of registries that exist
    registry.for_platform("any")
    families = {family.name: family for family in REGISTRY.collect() if family.name in FAMILIES}
    assert {name: family.type for name, family in families.items()} == FAMILIES
    for name, family in families.items():
        labels = {frozenset(sample.labels) - {"le"} for sample in family.samples}
        assert labels == {frozenset({"platform"} if name == "conquiet_breaker_state_gauge" else ())}
    assert REGISTRY.get_sample_value("conquiet_job_failures_total") is not None


@pytest.mark.clause("W-21")
def test_depth_is_that_of_all_queues(queue: PriorityDelayQueue, clock: ManualClock) -> None:
    before = value("conquiet_queue_depth")
    queue.enqueue(1)
    queue.enqueue(2, delay_seconds=60)
    other = PriorityDelayQueue(clock=clock)
    other.enqueue(3)
    assert value("conquiet_queue_depth") == before + 3
    queue.dequeue()
    assert value("conquiet_queue_depth") == before + 2
    del other
    gc.collect()
    assert value("conquiet_queue_depth") == before + 1


@pytest.mark.clause("W-21")
def test_latency_runs_from_the_moment_an_item_is_ready(queue: PriorityDelayQueue, clock: ManualClock) -> None:
    name = "conquiet_dequeue_latency_histogram"
    before = {part: value(f"{name}_{part}") for part in ("count", "sum")}
    within = {le: value(f"{name}_bucket", le=le) for le in ("0.001", "2.5", "5.0", "+Inf")}
    queue.enqueue("at once")
    queue.dequeue()
    queue.enqueue("waits for a worker")
    queue.enqueue("delayed", delay_seconds=10)
    clock.advance(13)
    queue.dequeue()
    queue.dequeue()
    assert value(f"{name}_count") == before["count"] + 3
    assert value(f"{name}_sum") == pytest.approx(
        before["sum"] + 0 + 13 + 3
    )  # 3, not 13: a delay is no latency
    more = {le: value(f"{name}_bucket", le=le) - count for le, count in within.items()}
    assert more == {"0.001": 1, "2.5": 1, "5.0": 2, "+Inf": 3}


@pytest.mark.clause("W-21")
def test_items_promoted_together_have_each_their_own_latency(
    queue: PriorityDelayQueue, clock: ManualClock
) -> None:
    name = "conquiet_dequeue_latency_histogram_sum"
    for delay in (12, 11, 14):
        queue.enqueue(delay, delay_seconds=delay)
    clock.advance(15)
    before, latencies = value(name), []
    for _ in range(3):
        queue.dequeue()
        latencies.append(value(name) - before)
    assert latencies == pytest.approx([3, 3 + 4, 3 + 4 + 1])


@pytest.mark.clause("W-21")
def test_what_a_queue_has_counted_stays_when_it_is_gone(clock: ManualClock) -> None:
    def use() -> None:
        queue = PriorityDelayQueue(clock=clock)
        queue.enqueue(1)
        clock.advance(4)
        queue.dequeue()

    name = "conquiet_dequeue_latency_histogram"
    before = value(f"{name}_count"), value(f"{name}_sum")
    use()
    gc.collect()
    assert value(f"{name}_count") == before[0] + 1
    assert value(f"{name}_sum") == pytest.approx(before[1] + 4)


@pytest.mark.clause("W-21")
def test_workers_count_durations_and_failures(queue: PriorityDelayQueue, clock: ManualClock) -> None:
    def handler(job: str) -> None:
        clock.advance(2)
        if job == "bad":
            raise ValueError(job)

    names = [
        f"conquiet_job_{name}"
        for name in ("processing_duration_count", "processing_duration_sum", "failures_total")
    ]
    before = [value(name) for name in names]
    for job in ("good", "bad", "good"):
        queue.enqueue(job)
    queue.shutdown()
    worker = Worker(queue, handler)
    worker.start()
    assert worker.join(10)
    after = [value(name) for name in names]
    assert [new - old for new, old in zip(after, before, strict=True)] == [3, pytest.approx(6), 1]


@pytest.mark.clause("W-21")
def test_the_state_of_each_platforms_breaker(clock: ManualClock) -> None:
    registry = CircuitBreakerRegistry(failure_threshold=1, clock=clock)
    platform = f"platform-{uuid4()}"

    def state() -> float | None:
        return REGISTRY.get_sample_value("conquiet_breaker_state_gauge", {"platform": platform})

    assert state() is None
    breaker = registry.for_platform(platform)
    assert state() == 0
    breaker.record_failure()
    assert state() == 2
    clock.advance(300)
    assert state() == 1  # also without a call since then
    assert breaker.allow()
    breaker.record_success()
    assert state() == 0


@pytest.mark.clause("W-21")
def test_the_gauge_is_the_worst_of_all_registries(clock: ManualClock) -> None:
    """Two services in one process ask the same platform, each through breakers of its own."""
    platform = f"platform-{uuid4()}"

    def state() -> float | None:
        return REGISTRY.get_sample_value("conquiet_breaker_state_gauge", {"platform": platform})

    one, other = (CircuitBreakerRegistry(failure_threshold=1, clock=clock) for _ in range(2))
    one.for_platform(platform).record_failure()
    other.for_platform(platform)
    assert state() == 2
    one.reset()
    gc.collect()
    assert state() == 0  # a breaker that is gone no longer counts
    other.reset()
    gc.collect()
    assert state() is None


@pytest.mark.clause("W-21")
def test_a_failing_backend_never_raises(
    queue: PriorityDelayQueue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*args: object) -> None:
        raise RuntimeError("the backend is down")

    say_once.cache_clear()
    for family in (prometheus_client.Counter, prometheus_client.Histogram, prometheus_client.Gauge):
        for method in ("inc", "observe", "labels"):
            if hasattr(family, method):
                monkeypatch.setattr(family, method, fail)
    LAST_EXCEPTIONS.clear()
    done: list[int] = []
    for job in range(5):
        queue.enqueue(job)
    queue.shutdown()
    worker = Worker(queue, lambda job: done.append(1 // job))
    worker.start()
    assert worker.join(10)
    assert len(done) == 4
    assert CircuitBreakerRegistry().for_platform("unmeasured").allow()
    assert [entry["type"] for entry in LAST_EXCEPTIONS] == ["ZeroDivisionError"]
    assert [record.name for record in caplog.records].count("conquiet.observe") == 1


@pytest.mark.clause("W-21")
def test_they_are_registered_once_when_many_threads_begin_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_program("together") == ["no complaint"]


@pytest.mark.clause("W-21")
@pytest.mark.parametrize("obstacle", ["not installed", "names taken"])
def test_without_a_usable_prometheus_client_everything_works_all_the_same(obstacle: str) -> None:
    assert run_program("unmeasured", obstacle) == ["done [1], allowed True, latency counted 2"]


@pytest.mark.clause("W-21")
def test_scraping_while_queues_come_and_go() -> None:
    done = threading.Event()
    errors: list[BaseException] = []

    def scrape() -> None:
        try:
            while not done.is_set():
                list(local_metrics._QUEUES.collect())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=scrape, daemon=True)
    thread.start()
    before = value("conquiet_dequeue_latency_histogram_count")
    for _ in range(2_000):
        queue = PriorityDelayQueue()
        queue.enqueue(1)
        queue.dequeue()
    done.set()
    thread.join(10)
    del queue
    gc.collect()
    assert errors == []
    assert value("conquiet_dequeue_latency_histogram_count") == before + 2_000
