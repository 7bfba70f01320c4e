"""Tests the promises of the Redis Streams queue, on streams that are used for nothing else."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

from conquiet.clock import SYSTEM_CLOCK, Parker
from conquiet.errors import LeaseLostError
from conquiet.queue import QueueConfig, RedisStreamsQueue
from conquiet.queue.wire import TRANSPORT_ERRORS, translated
from conquiet.verify.findings import Check, Finding, require
from conquiet.verify.scratch_space import StreamScratch

__all__ = ["StreamChecks"]


class StreamChecks:
    """The checks without faults, on streams in the scratch space."""

    def __init__(self, scratch: StreamScratch, messages: int) -> None:
        self._scratch = scratch
        self._messages = messages

    def checks(self) -> list[Check]:
        return [
            Check("what is enqueued comes back unchanged", self._round_trip),
            Check("a message goes to one consumer of a group", self._one_consumer),
            Check("an unacknowledged message stays pending and can be claimed", self._recovery),
            Check("a consumer that lost a message cannot acknowledge it", self._fencing),
        ]

    def notes(self) -> list[Finding]:
        """What can be lost with the settings of the server."""
        return [
            Finding("persistence", "note", _persistence(self._scratch.redis)),
            Finding("memory", "note", _memory(self._scratch.redis)),
        ]

    def _queue(self, name: str, consumer: str = "one") -> RedisStreamsQueue:
        return RedisStreamsQueue(
            self._scratch.redis, QueueConfig(self._scratch.key(name), "verify", consumer)
        )

    def _round_trip(self) -> str:
        queue = self._queue("round-trip")
        payloads = [{"n": n, "text": "ünï\u0000\u202e"} for n in range(100)]
        ids = queue.enqueue_many(payloads)
        found = queue.read(1000, 100)
        require(
            [message.id for message in found] == ids, "messages came in another order, or some are missing"
        )
        require([message.payload for message in found] == payloads, "a payload came back changed")
        queue.ack_many(found)
        require(queue.backlog_stats().pending == 0, "acknowledged messages are still pending")
        return "100 messages, in order"

    def _one_consumer(self) -> str:
        self._queue("shared").enqueue_many([{"n": n} for n in range(self._messages)])
        seen: Counter[str] = Counter()
        lock = threading.Lock()

        def consume(name: str) -> None:
            queue = self._queue("shared", name)
            while found := queue.read(100, 10):
                with lock:
                    seen.update(message.id for message in found)

        threads = [threading.Thread(target=consume, args=(f"consumer-{n}",)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        twice = [message for message, times in seen.items() if times > 1]
        require(not twice, f"{len(twice)} messages went to two consumers")
        require(
            len(seen) == self._messages,
            f"{self._messages - len(seen)} of {self._messages} were not delivered",
        )
        return f"{self._messages} messages, 4 consumers"

    def _recovery(self) -> str:
        queue, other = self._queue("left", "dead"), self._queue("left", "rescuer")
        queue.enqueue({"n": 1})
        (message,) = queue.read(1000)
        require(not other.read(50), "a message that is pending was delivered as new")
        SYSTEM_CLOCK.wait(Parker(), 0.05)
        claimed = other.claim_stale(10)
        require([one.id for one in claimed] == [message.id], "a stale message could not be claimed")
        other.ack(claimed[0])
        return "pending until claimed, then acknowledged"

    def _fencing(self) -> str:
        queue, other = self._queue("fenced", "slow"), self._queue("fenced", "rescuer")
        queue.enqueue({"n": 1})
        (message,) = queue.read(1000)
        SYSTEM_CLOCK.wait(Parker(), 0.05)
        (claimed,) = other.claim_stale(10)
        try:
            queue.ack_if_owner(message)
        except LeaseLostError:
            other.ack_if_owner(claimed)
            return "ack_if_owner refused the old consumer, accepted the new one"
        require(False, "the consumer that lost the message could acknowledge it")
        return ""


def _persistence(redis: Any) -> str:
    found = _settings(redis, "appendonly", "appendfsync", "save")
    if found is None:
        return (
            "unknown (CONFIG is not allowed): ask the operator of the server for appendonly and appendfsync"
        )
    if found["appendonly"] != "yes":
        return "appendonly is off: if the process dies, everything since the last snapshot is lost"
    return {
        "always": "appendfsync always: what was acknowledged survives a power cut",
        "everysec": "appendfsync everysec: a power cut may lose what was acknowledged in the last second or more",
    }.get(
        found["appendfsync"],
        f"appendfsync {found['appendfsync']}: the operating system decides what survives",
    )


def _memory(redis: Any) -> str:
    found = _settings(redis, "maxmemory", "maxmemory-policy")
    if found is None:
        return "unknown (CONFIG is not allowed): maxmemory-policy should be noeviction"
    if found["maxmemory"] != "0" and found["maxmemory-policy"] != "noeviction":
        return f"maxmemory-policy {found['maxmemory-policy']}: a full server deletes streams; set noeviction"
    return "a full server refuses new messages and keeps existing ones"


def _settings(redis: Any, *names: str) -> dict[str, str] | None:
    from redis.exceptions import ResponseError

    try:
        found = redis.config_get(*names)
    except ResponseError:  # managed servers hide it
        return None
    except TRANSPORT_ERRORS as error:
        raise translated("ask the server for its settings", error) from error
    return {_text(name): _text(value) for name, value in found.items()}


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
