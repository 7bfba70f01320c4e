"""A consumer process on a Redis stream: `python -m conquiet.verify.stream_worker`."""

from __future__ import annotations

import json
import threading
from typing import Any

from conquiet.errors import LeaseLostError
from conquiet.queue import (
    NoTransactions,
    QueueConfig,
    QueueMessage,
    RedisStreamsQueue,
    connect,
    unique_consumer_name,
)
from conquiet.verify.history import History
from conquiet.verify.owner import PLACES, Owner, obey
from conquiet.verify.recording.streams import RecordedConsumer

__all__ = ["GROUP"]

GROUP = "verify"


class _ToldConsumer(RecordedConsumer):
    owner: Owner

    def stop(self) -> None:
        super().stop()
        self.owner.say("stop")


def work_on_messages(order: dict[str, Any], owner: Owner) -> None:
    """The effect counts the deliveries of each message."""

    def consume() -> None:
        with connect(order["url"]) as redis, History(order["history"]) as history:
            config = _config(order)
            handled = 0

            def handle(message: QueueMessage, tx: Any) -> None:
                nonlocal handled
                owner.take_time(order, message.id)
                redis.hincrby(order["effects"], str(message.payload["n"]), 1)
                handled += 1

            consumer = _ToldConsumer(redis, config, history)
            consumer.owner = owner
            consumer.run(handler=handle, db_factory=NoTransactions())
            owner.say(json.dumps({"handled": handled}))

    for _ in range(0 if order["held"] else PLACES - 1):
        threading.Thread(target=consume, daemon=True).start()
    consume()


def ack_late(order: dict[str, Any], owner: Owner) -> None:
    """Read one message after the other, and acknowledge it with `ack_if_owner` when the owner lets it continue."""
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


if __name__ == "__main__":
    obey({"messages": work_on_messages, "late acks": ack_late})
