"""A stage for consumers, real and broken ones: a stream, a history, and the scenarios that they run.

Everything is real: Redis, threads, and a killed process where only that shows the fault.
"""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from conquiet.errors import MalformedEntryError
from conquiet.queue import NoTransactions, QueueConfig, QueueMessage, connect
from conquiet.queue.flows.delivery import Delivery
from conquiet.verify.history import History
from conquiet.verify.recording.streams import RecordedConsumer, RecordedQueue
from tests.acceptance.fleet import Fleet
from tests.acceptance.queue.worker import Effects, Work

MESSAGES = 12


class Stage:
    """A stream with recorded consumers of one kind. Their handlers have no effect: the history is judged."""

    def __init__(self, url: str, folder: Path, delivery: type[Delivery]) -> None:
        self.url = url
        self.folder = folder
        self.delivery = delivery
        self.claim_idle_ms = 30
        self.redis: Redis = connect(url)
        self.history = History(folder / "history")
        self.queue = RecordedQueue(self.redis, self.config("producer"), self.history)

    def config(self, name: str, block_ms: int = 50) -> QueueConfig:
        return QueueConfig("campaign", "group", name, block_ms=block_ms, claim_idle_ms=self.claim_idle_ms)

    def enqueue(self, count: int = MESSAGES) -> None:
        self.queue.enqueue_many({"n": number} for number in range(count))

    def consumer(self, name: str, block_ms: int = 50, **settings: Any) -> RecordedConsumer:
        config = self.config(name, block_ms)
        return RecordedConsumer(self.redis, config, self.history, delivery=self.delivery, **settings)

    def run(self, consumer: RecordedConsumer, handler: Callable[[QueueMessage], Any] = bool) -> None:
        consumer.run(handler=lambda message, tx: handler(message), db_factory=NoTransactions())

    def run_until_idle(self, name: str, handler: Callable[[QueueMessage], Any] = bool) -> None:
        """Run until a read returns nothing; a consumer ended by a handler's error is started again."""
        idle = threading.Event()

        def reached(point: str) -> None:
            if point == "idle":
                idle.set()
                consumer.stop()

        while not idle.is_set():
            consumer = self.consumer(name, reached=reached)
            try:
                self.run(consumer, handler)
            except RuntimeError:
                pass  # raised by the handler

    def recover(self, looks: int | None = None) -> None:
        """Take over stale messages until nothing is pending (or `looks` times, or too many were handled)."""
        seen: Counter[str] = Counter()

        def reached(point: str) -> None:
            seen[point] += 1
            done = point == "idle" and (seen[point] == looks or not consumer.backlog_stats().pending)
            if done or seen["handled"] > 3 * MESSAGES:
                consumer.stop()

        consumer = self.consumer("recovery", reached=reached)
        consumer.run_recovery(
            handler=lambda message, tx: None,
            on_malformed=lambda entry, tx: None,
            db_factory=NoTransactions(),
            interval_ms=5,
        )

    @contextmanager
    def busy_consumer(self, name: str) -> Iterator[None]:
        """A consumer that is in its handler, with the first message, for the duration of the block."""
        begun, go_on = threading.Event(), threading.Event()

        def handler(message: QueueMessage) -> None:
            begun.set()
            go_on.wait()

        thread = threading.Thread(target=self.run_until_idle, args=(name, handler))
        thread.start()
        try:
            begun.wait()
            yield
        finally:
            go_on.set()
            thread.join()

    def wait_for_blocked_reader(self) -> None:
        while not any("b" in client["flags"] for client in self.redis.client_list()):
            time.sleep(0.002)

    def close(self) -> None:
        self.history.close()
        self.redis.close()


Scenario = Callable[[Stage], None]


def steady(stage: Stage) -> None:
    stage.enqueue()
    stage.run_until_idle("A")
    stage.recover()


def failing_handler(stage: Stage) -> None:
    failures = iter([RuntimeError("the database is away")])

    def handler(message: QueueMessage) -> None:
        if message.payload["n"] == 5:
            for failure in failures:
                raise failure

    stage.enqueue()
    stage.run_until_idle("A", handler)
    stage.recover()


def stopped_in_a_read(stage: Stage) -> None:
    consumer = stage.consumer("A", block_ms=30_000)
    thread = threading.Thread(target=stage.run, args=(consumer,))
    thread.start()
    stage.wait_for_blocked_reader()
    consumer.stop()
    stage.enqueue(1)
    thread.join()
    stage.recover()


def malformed_batch(stage: Stage) -> None:
    stage.enqueue(3)
    with stage.history.operation("enqueue") as op:
        entry_id = stage.redis.xadd("campaign", {"other": "field"})
        op.ok(entry_id if isinstance(entry_id, str) else entry_id.decode())
    stage.enqueue(3)
    with pytest.raises(MalformedEntryError):
        stage.queue.read(block_ms=50, count=10)  # and does not handle them
    stage.recover()


def slow_handler_beside_recovery(stage: Stage) -> None:
    stage.claim_idle_ms = 60_000
    stage.enqueue(1)
    with stage.busy_consumer("A"):
        stage.recover(looks=3)


def two_consumers(stage: Stage) -> None:
    stage.enqueue(4)
    with stage.busy_consumer("A"):
        stage.run_until_idle("B")
    stage.recover()


def killed(stage: Stage, point: str) -> None:
    """A consumer in its own process dies at its third message; another one takes over."""
    stage.enqueue()
    database = stage.folder / "effects.db"
    with closing(Effects(database)) as effects:
        effects.create()
    work = Work(
        *(stage.url, "A", str(database), stage.history.path),
        delivery=stage.delivery.__name__,
        die_at=point,
        die_at_nth=3,
        claim_idle_ms=stage.claim_idle_ms,
    )
    with Fleet(stage.folder) as fleet:
        assert fleet.start(work).wait(60) == -signal.SIGKILL
    stage.run_until_idle("B")
    stage.recover()


def killed_in_the_handler(stage: Stage) -> None:
    killed(stage, "handling")


def killed_after_the_ack(stage: Stage) -> None:
    killed(stage, "acked")


def killed_before_the_consumer_saw_it(stage: Stage) -> None:
    killed(stage, "delivered")
