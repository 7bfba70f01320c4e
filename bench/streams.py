"""The Redis Streams queue against the raw client doing the same with the same JSON codec."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import redis

from bench import raw
from bench.harness import Bench, timed
from conquiet.embedded import RedisServer
from conquiet.queue import NoTransactions, QueueConfig, QueueConsumer, RedisStreamsQueue, connect

BENCH = Bench("streams")
STREAM = "bench:streams"
PAYLOAD: dict[str, Any] = json.loads(raw.PAYLOAD)
CONFIG = QueueConfig(STREAM, raw.GROUP, raw.CONSUMER, block_ms=1000)

redis_server = BENCH.needs(RedisServer)
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


@contextmanager
def stream(filled: int = 0) -> Iterator[tuple[redis.Redis, RedisStreamsQueue]]:
    """Create a stream with this many entries, and give access with the plain client and with our queue."""
    with connect(redis_server().url) as client:
        raw.stream_create(client, STREAM)
        queue = RedisStreamsQueue(client, CONFIG)
        queue.enqueue_many([PAYLOAD] * filled)
        yield client, queue


def enqueue_raw(count: int) -> float:
    with stream() as (client, _):
        return timed(lambda: [client.xadd(STREAM, {"data": _encode(PAYLOAD)}) for _ in range(count)])


def enqueue_ours(count: int) -> float:
    with stream() as (_, queue):
        return timed(lambda: [queue.enqueue(PAYLOAD) for _ in range(count)])


def enqueue_many_raw(count: int) -> float:
    def pipelined() -> None:
        for size in raw.batches(count, 1_000):
            pipeline = client.pipeline(transaction=False)
            for _ in range(size):
                pipeline.xadd(STREAM, {"data": _encode(PAYLOAD)})
            pipeline.execute()

    with stream() as (client, _):
        return timed(pipelined)


def enqueue_many_ours(count: int) -> float:
    rows = [PAYLOAD] * count
    with stream() as (_, queue):
        return timed(lambda: queue.enqueue_many(rows))


def read_ack_raw(count: int) -> float:
    with stream(filled=count) as (client, _):
        return timed(lambda: raw.stream_read_ack(client, STREAM, count, batch=100, decode=_decode))


def read_ack_ours(count: int) -> float:
    def drain() -> None:
        done = 0
        while done < count:
            messages = queue.read(1000, 100)
            queue.ack_many(messages)
            done += len(messages)

    with stream(filled=count) as (_, queue):
        return timed(drain)


def run_raw(count: int) -> float:
    with stream(filled=count) as (client, _):
        return timed(lambda: raw.stream_read_ack(client, STREAM, count, batch=1, decode=_decode))


def run_ours(count: int) -> float:
    with stream(filled=count) as (client, _):
        consumer = QueueConsumer(client, CONFIG)
        left = count

        def handler(message: object, tx: object) -> None:
            nonlocal left
            left -= 1
            if not left:
                consumer.stop()

        return timed(lambda: consumer.run(handler=handler, db_factory=NoTransactions()))


BLOCKS = 10
IDLE = QueueConfig(STREAM, raw.GROUP, raw.CONSUMER, block_ms=200)


def idle_cpu_share() -> float:
    """Return the CPU time of this process per second while a consumer waits and no messages arrive."""
    return _idle()[0]


def idle_calls_per_block() -> float:
    """Return the number of Redis calls of an idle consumer per `block_ms`."""
    return _idle()[1]


def _idle() -> tuple[float, float]:
    with stream() as (client, _):
        consumer = QueueConsumer(client, IDLE)
        calls = client.info("stats")["total_commands_processed"]
        cpu, begin = time.process_time(), time.perf_counter()
        timer = threading.Timer((BLOCKS - 0.5) * IDLE.block_ms / 1000, consumer.stop)
        timer.start()
        consumer.run(handler=lambda message, tx: None, db_factory=NoTransactions())
        share = (time.process_time() - cpu) / (time.perf_counter() - begin)
        made = client.info("stats")["total_commands_processed"] - calls - 1  # the INFO itself
        return share, made / BLOCKS


MEASURED = 100_000
LARGE = {**PAYLOAD, "post": ""}
LARGE["post"] = "x" * (210 - len(_encode(LARGE)))  # 210 bytes of JSON, as a report with all its fields


def entry_bytes() -> float:
    return _memory_bytes()[0]


def pending_bytes() -> float:
    return _memory_bytes()[1]


def _memory_bytes() -> tuple[float, float]:
    """What the server reports as used, per entry: for an entry in the stream, then for it being pending."""
    with stream() as (client, queue):
        empty = _used(client)
        for size in raw.batches(MEASURED, 10_000):
            queue.enqueue_many([LARGE] * size)
        full = _used(client)
        for size in raw.batches(MEASURED, 1_000):
            assert len(queue.read(1000, size)) == size
        return (full - empty) / MEASURED, (_used(client) - full) / MEASURED


def _used(client: redis.Redis) -> int:
    return int(client.info("memory")["used_memory_dataset"])


BENCH.compare("enqueue", unit="messages", count=5_000, ours=enqueue_ours, raw=enqueue_raw)
BENCH.compare("enqueue_many", unit="messages", count=50_000, ours=enqueue_many_ours, raw=enqueue_many_raw)
BENCH.compare("read_ack", unit="messages", count=50_000, ours=read_ack_ours, raw=read_ack_raw)
BENCH.compare("run", unit="messages", count=3_000, ours=run_ours, raw=run_raw)
BENCH.figure("idle_cpu_share", unit="of a core", measure=idle_cpu_share)
BENCH.figure("idle_calls_per_block", unit="Redis calls", measure=idle_calls_per_block)
BENCH.figure("entry_bytes", unit="bytes", measure=entry_bytes)
BENCH.figure("pending_bytes", unit="bytes", measure=pending_bytes)
