"""The second half of the sample: leased retry jobs, a worker on the Consumer Engine, unreliable platforms."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from rich.progress import Progress
from sqlalchemy.orm import Session, sessionmaker

from conquiet.clock import SYSTEM_CLOCK, Parker
from conquiet.connectors import JobConnector
from conquiet.errors import PlatformError
from conquiet.jobs import JobStore, QueueStats
from conquiet.local import CircuitBreakerRegistry
from conquiet.reconcile import (
    DEFAULT_RULES,
    JobStoreQueue,
    Metrics,
    Observation,
    PlatformAdapter,
    PlatformFetcher,
    ReconciliationTask,
    RetryRule,
    RetryScheduler,
    SimulatedAdapter,
    Status,
)
from conquiet.task import (
    BatchPolicy,
    ConcurrencyPolicy,
    ConsumeReport,
    ConsumerLoopPolicy,
    ConsumerPolicy,
    ConsumerSteps,
    EmptyQueuePolicy,
    ProcessPolicy,
    RetryPolicy,
)

__all__ = ["QUEUE", "SAMPLE_RULES", "work_off"]

QUEUE = "reconciliation"
# Delays of seconds instead of half an hour, so that the run is short, and enough attempts to outlast an outage.
SAMPLE_RULES = replace(
    DEFAULT_RULES,
    retries=(
        RetryRule(Status.MISSING_PLATFORM_DATA, 1.2, growing=False, max_attempts=10),
        RetryRule(Status.INCOMPLETE_PLATFORM_DATA, 1.0, growing=False, max_attempts=2),
    ),
)
_POLICY = ConsumerPolicy(
    loop=ConsumerLoopPolicy(
        batch=BatchPolicy(size=32),
        concurrency=ConcurrencyPolicy(value=8),
        streaming=True,
        empty_queue=EmptyQueuePolicy(backoff=0.05, backoff_cap=0.2),
    ),
    steps=ConsumerSteps(process=ProcessPolicy(retry=RetryPolicy(max_attempts=3, backoff=0.02))),
)
_LOOK_EVERY = 0.2  # seconds


class Outage(PlatformAdapter):
    """A platform that fails for a range of calls, long enough to open the breaker and fail some of its probes."""

    def __init__(self, platform: PlatformAdapter, after: int, calls: int) -> None:
        self._platform = platform
        self._lasts = range(after, after + calls)
        self._calls = 0
        self._lock = threading.Lock()

    def fetch(self, post_id: str) -> Observation:
        with self._lock:
            call = self._calls
            self._calls += 1
        if call in self._lasts:
            raise PlatformError("the platform is down for maintenance")
        return self._platform.fetch(post_id)


def work_off(
    store: JobStore,
    sessions: sessionmaker[Session],
    posts: Mapping[str, Mapping[str, Metrics]],
    expected: int,
    progress: Progress,
) -> ConsumeReport:
    """Work until no report waits for an attempt. `posts` is the platforms' data; one platform has an outage."""
    adapters: dict[str, PlatformAdapter] = {
        name: SimulatedAdapter(seed=number, posts=known, failure_rate=0.05)
        for number, (name, known) in enumerate(posts.items())
    }
    broken = next(iter(adapters))
    # With this many jobs, the breaker's probes end the outage before any report runs out of attempts.
    if len(posts[broken]) >= 30:
        adapters[broken] = Outage(adapters[broken], after=10, calls=14)
    breakers = CircuitBreakerRegistry(failure_threshold=5, open_cooldown_seconds=0.75)
    task = ReconciliationTask(PlatformFetcher(adapters, breakers=breakers), sessions, rules=SAMPLE_RULES)
    scheduler = RetryScheduler(sessions, JobStoreQueue(store, QUEUE))
    bar = progress.add_task("retries", total=expected)
    with _consuming(task, JobConnector(store, QUEUE)) as ended:
        while True:
            # The order matters: a job commits its next attempt before it ends.
            stats = store.stats(QUEUE).get(QUEUE) or QueueStats(QUEUE)
            scheduled = scheduler.run_once()
            waiting = stats.ready + stats.delayed + stats.in_flight + stats.expired
            states = ", ".join(f"{name} {state.value}" for name, state in sorted(breakers.states().items()))
            progress.update(
                bar,
                total=max(expected, stats.succeeded + waiting),
                completed=stats.succeeded,
                description=f"retries ({states})" if states else "retries",
            )
            if not (waiting or scheduled) or ended.is_set():
                break
            SYSTEM_CLOCK.wait(Parker(), _LOOK_EVERY)
    return ended.report


class _Ended(threading.Event):
    report: ConsumeReport


@contextmanager
def _consuming(task: ReconciliationTask, connector: JobConnector) -> Iterator[_Ended]:
    """Run the engine on a thread, and re-raise its exception at the end."""
    ended = _Ended()
    failure: list[BaseException] = []

    def consume() -> None:
        try:
            ended.report = task.consume_transactions(connector, _POLICY)
        except BaseException as error:  # noqa: BLE001 - re-raised by the waiting thread
            failure.append(error)
        finally:
            ended.set()

    thread = threading.Thread(target=consume, name="retries")
    thread.start()
    try:
        yield ended
    finally:
        task.stop()
        thread.join()
    if failure:
        raise failure[0]
