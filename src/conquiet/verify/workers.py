"""The worker processes of a verification: `python -m conquiet.verify.workers`, told by standard input.

The first line is the order, in JSON. A process that is `held` says `at <id>` in each handler and goes on when it is
told the id; one that is not says `begun`, once. `stop` is what it says to SIGTERM, and its counts are its last line.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict
from time import sleep
from typing import Any

from conquiet.errors import LeaseLostError
from conquiet.jobs import Job, JobContext, JobWorker, RetrySchedule, open_store
from conquiet.queue import (
    NoTransactions,
    QueueConfig,
    QueueMessage,
    RedisStreamsQueue,
    connect,
    unique_consumer_name,
)
from conquiet.verify.history import History
from conquiet.verify.recording.jobs import record
from conquiet.verify.recording.streams import RecordedConsumer

__all__ = ["EFFECTS", "GROUP", "PLACES"]

EFFECTS = "conquiet_verify_effects"
GROUP = "verify"
PLACES = 2  # at a time, in a process that is not held


class _Owner:
    """The other end of standard input and output. The process ends with its owner."""

    def __init__(self) -> None:
        self._go_on: dict[str, threading.Event] = {}
        self._begun = threading.Lock()
        threading.Thread(target=self._listen, daemon=True).start()

    def say(self, line: str) -> None:
        os.write(1, line.encode() + b"\n")

    def hold(self, about: str) -> None:
        event = self._go_on.setdefault(about, threading.Event())
        self.say(f"at {about}")
        event.wait()

    def begin(self) -> None:
        if self._begun.acquire(blocking=False):
            self.say("begun")

    def _listen(self) -> None:
        while about := sys.stdin.readline().strip():
            self._go_on.setdefault(about, threading.Event()).set()
        os._exit(1)


class _ToldWorker(JobWorker):
    owner: _Owner

    def stop(self) -> None:
        super().stop()
        self.owner.say("stop")


class _ToldConsumer(RecordedConsumer):
    owner: _Owner

    def stop(self) -> None:
        super().stop()
        self.owner.say("stop")


def work_on_jobs(order: dict[str, Any], owner: _Owner) -> None:
    """The effect is a row, in the transaction of the acknowledgement: it must be there once."""
    dsn, held = order["dsn"], order["held"]
    insert = f"INSERT INTO {EFFECTS} (job) VALUES ({'?' if dsn.startswith('sqlite') else '%s'})"  # noqa: S608
    retry = RetrySchedule(base_seconds=0.01, max_seconds=0.05)
    with (
        History(order["history"]) as history,
        open_store(dsn, retry=retry, max_lease_expiries=1_000) as store,
    ):
        backend = record(store, history)

        def handle(job: Job, context: JobContext) -> None:
            backend.begin_handling(job)
            _take_time(order, owner, job.id)
            context.connection.execute(insert, (job.id,))

        worker = _ToldWorker(
            store,
            handle,
            queues=order["queue"],
            concurrency=1 if held else PLACES,
            prefetch=order["prefetch"],
            lease_ttl=order["lease_ttl"],
        )
        worker.owner = owner
        owner.say(json.dumps(asdict(worker.run())))


def work_on_messages(order: dict[str, Any], owner: _Owner) -> None:
    """The effect is a count of deliveries, by message."""

    def consume() -> None:
        with connect(order["url"]) as redis, History(order["history"]) as history:
            config = _config(order)
            handled = 0

            def handle(message: QueueMessage, tx: Any) -> None:
                nonlocal handled
                _take_time(order, owner, message.id)
                redis.hincrby(order["effects"], str(message.payload["n"]), 1)
                handled += 1

            consumer = _ToldConsumer(redis, config, history)
            consumer.owner = owner
            consumer.run(handler=handle, db_factory=NoTransactions())
            owner.say(json.dumps({"handled": handled}))

    for _ in range(0 if order["held"] else PLACES - 1):
        threading.Thread(target=consume, daemon=True).start()
    consume()


def ack_late(order: dict[str, Any], owner: _Owner) -> None:
    """Reads one message after the other, and acknowledges it if it is still its own when it goes on."""
    counts = {"acked": 0, "refused": 0}
    with connect(order["url"]) as redis, History(order["history"]) as history:
        config = _config(order)
        consumer = _ToldConsumer(redis, config, history)
        consumer.owner = owner
        queue = RedisStreamsQueue(redis, config)
        with consumer.stop_on_sigterm():
            for message in consumer.iter_messages():
                owner.hold(message.id)
                try:
                    with history.operation("ack", message.id, holder=config.consumer_name):
                        queue.ack_if_owner(message)
                    counts["acked"] += 1
                except LeaseLostError:
                    counts["refused"] += 1
    owner.say(json.dumps(counts))


def _config(order: dict[str, Any]) -> QueueConfig:
    idle = order["claim_idle_ms"]
    return QueueConfig(order["stream"], GROUP, unique_consumer_name(), block_ms=100, claim_idle_ms=idle)


def _take_time(order: dict[str, Any], owner: _Owner, about: str) -> None:
    if order["held"]:
        owner.hold(about)
    else:
        owner.begin()
        sleep(random.uniform(0.0, order["seconds"]))


WORK: dict[str, Callable[[dict[str, Any], _Owner], None]] = {
    "jobs": work_on_jobs,
    "messages": work_on_messages,
    "late acks": ack_late,
}


if __name__ == "__main__":
    given = json.loads(sys.stdin.readline())
    WORK[given["work"]](given, _Owner())
