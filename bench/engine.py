"""The Consumer Engine: its cost per transaction, and its rate from a Redis stream compared with others."""

from __future__ import annotations

import asyncio
import json
import resource
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import redis

from bench import raw
from bench.harness import Bench, timed
from bench.peers import drain
from conquiet.connectors import (
    AsyncIterableConnector,
    AsyncStreamConnector,
    IterableConnector,
    StreamConnector,
)
from conquiet.embedded import RedisServer
from conquiet.queue import AsyncRedisStreamsQueue, QueueConfig, RedisStreamsQueue, connect, connect_async
from conquiet.task import AsyncConsumerTask, ConsumeReport, ConsumerTask, Transaction
from conquiet.task.mixins.policies import (
    BatchPolicy,
    ConcurrencyPolicy,
    ConsumerLoopPolicy,
    ConsumerPolicy,
    ConsumerSteps,
    ProcessPolicy,
    RetryPolicy,
)

BENCH = Bench("engine")
STREAM = "bench:engine"
PAYLOAD: dict[str, Any] = json.loads(raw.PAYLOAD)
CONFIG = QueueConfig(STREAM, raw.GROUP, raw.CONSUMER, block_ms=100)

redis_server = BENCH.needs(RedisServer)
_decode = msgspec.json.Decoder().decode


class Nothing(ConsumerTask):
    def process_transaction(self, transaction: Transaction) -> None:
        pass


class NothingAwaited(AsyncConsumerTask):
    async def process_transaction(self, transaction: Transaction) -> None:
        pass


def policy(concurrency: int, timeout: float | None = None, limit: int | None = None) -> ConsumerPolicy:
    return ConsumerPolicy(
        loop=ConsumerLoopPolicy(
            batch=BatchPolicy(size=100), concurrency=ConcurrencyPolicy(value=concurrency), limit=limit
        ),
        steps=ConsumerSteps(process=ProcessPolicy(retry=RetryPolicy(timeout=timeout))),
    )


def checked(report: ConsumeReport, count: int) -> None:
    assert report.succeeded == count, report


def sync_ours(count: int) -> float:
    task, source = Nothing(), IterableConnector([PAYLOAD] * count)
    return timed(lambda: checked(task.consume_transactions(source, policy(1)), count))


def sync_executor(count: int) -> float:
    task, transaction = Nothing(), Transaction("1", PAYLOAD)

    def work(executor: ThreadPoolExecutor) -> None:
        for _ in range(count):
            executor.submit(task.process_transaction, transaction).result()

    with ThreadPoolExecutor(1) as executor:
        executor.submit(int).result()
        return timed(lambda: work(executor))


def sync_timed_ours(count: int) -> float:
    task, source = Nothing(), IterableConnector([PAYLOAD] * count)
    return timed(lambda: checked(task.consume_transactions(source, policy(1, timeout=5.0)), count))


def sync_timed_executor(count: int) -> float:
    """The same with a limit of five seconds on waiting for each result."""
    task, transaction = Nothing(), Transaction("1", PAYLOAD)

    def work(executor: ThreadPoolExecutor) -> None:
        for _ in range(count):
            executor.submit(task.process_transaction, transaction).result(timeout=5.0)

    with ThreadPoolExecutor(1) as executor:
        executor.submit(int).result()
        return timed(lambda: work(executor))


def async_ours(count: int) -> float:
    async def work() -> float:
        task, source = NothingAwaited(), AsyncIterableConnector([PAYLOAD] * count)
        begin = time.perf_counter()
        checked(await task.consume_transactions(source, policy(50)), count)
        return time.perf_counter() - begin

    return asyncio.run(work())


def async_tasks(count: int) -> float:
    """A task for each transaction, at most fifty at a time through a semaphore."""

    async def work() -> float:
        task, transaction, places = NothingAwaited(), Transaction("1", PAYLOAD), asyncio.Semaphore(50)

        async def one() -> None:
            async with places:
                await task.process_transaction(transaction)

        begin = time.perf_counter()
        for size in raw.batches(count, 100):
            await asyncio.gather(*[asyncio.create_task(one()) for _ in range(size)])
        return time.perf_counter() - begin

    return asyncio.run(work())


@contextmanager
def stream(filled: int) -> Iterator[redis.Redis]:
    with connect(redis_server().url) as client:
        raw.stream_create(client, STREAM)
        RedisStreamsQueue(client, CONFIG).enqueue_many([PAYLOAD] * filled)
        yield client


def stream_sync(count: int) -> float:
    with stream(count) as client:
        connector = StreamConnector(RedisStreamsQueue(client, CONFIG))
        return timed(
            lambda: checked(Nothing().consume_transactions(connector, policy(8, limit=count)), count)
        )


def stream_async(count: int) -> float:
    async def work() -> float:
        async with connect_async(redis_server().url) as client:
            connector = AsyncStreamConnector(await AsyncRedisStreamsQueue.create(client, CONFIG))
            begin = time.perf_counter()
            checked(await NothingAwaited().consume_transactions(connector, policy(50, limit=count)), count)
            return time.perf_counter() - begin

    with stream(count):
        return asyncio.run(work())


def stream_raw(count: int) -> float:
    with stream(count) as client:
        return timed(lambda: raw.stream_read_ack(client, STREAM, count, batch=100, decode=_decode))


def traced(count: int, work: Any) -> float:
    """Run `work` with the SDK and a batch exporter that drops all spans."""
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

    class Nowhere(SpanExporter):
        def export(self, spans: Any) -> SpanExportResult:
            return SpanExportResult.SUCCESS

    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(Nowhere(), max_queue_size=1_000_000))
    before = trace._TRACER_PROVIDER
    trace._TRACER_PROVIDER = provider
    try:
        return float(work(count))
    finally:
        trace._TRACER_PROVIDER = before
        provider.shutdown()


def spans_ours(count: int) -> float:
    return traced(count, sync_ours)


def spans_by_hand(count: int) -> float:
    """The same spans with the same attributes around the same calls, on one thread like the engine."""
    from opentelemetry import trace

    def work(count: int) -> float:
        task, tracer = Nothing(), trace.get_tracer("bench")
        step: dict[str, str | int | float] = {
            "conquiet.task": "Nothing",
            "conquiet.max_attempts": 1,
            "conquiet.backoff": 0.0,
            "conquiet.backoff_multiplier": 2.0,
            "conquiet.backoff_cap": 0.0,
        }

        def consume() -> None:
            with tracer.start_as_current_span("consume_transactions"):
                for number in range(count):
                    id_ = str(number)
                    transaction = Transaction(id_, PAYLOAD)
                    known = {"conquiet.task": "Nothing", "conquiet.transaction_id": id_}
                    with tracer.start_as_current_span("start_processing", attributes=known):
                        mine = {**step, "conquiet.attempt": 0, "conquiet.transaction_id": id_}
                        with tracer.start_as_current_span(
                            "process", attributes={**mine, "conquiet.step": "process"}
                        ):
                            result = task.process_transaction(transaction)
                        with tracer.start_as_current_span(
                            "handle_success", attributes={**mine, "conquiet.step": "success"}
                        ):
                            task.handle_transaction_success(transaction, result)

        return timed(consume)

    return traced(count, work)


def memory_growth() -> float:
    """The largest growth of the process in MB after a warm-up, during a million transactions."""
    task, seen = Nothing(), [0.0]

    def numbers(count: int) -> Iterator[int]:
        for number in range(count):
            if number % 20_000 == 0:
                seen.append(_resident_mb())
            yield number

    task.consume_transactions(IterableConnector(numbers(100_000)), policy(8))
    before = _resident_mb()
    seen.clear()
    checked(task.consume_transactions(IterableConnector(numbers(1_000_000)), policy(8)), 1_000_000)
    return max(seen) - before


def _resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


BENCH.compare("sync", unit="transactions", count=20_000, ours=sync_ours, raw=sync_executor)
BENCH.compare("sync_timed", unit="transactions", count=5_000, ours=sync_timed_ours, raw=sync_timed_executor)
BENCH.compare("async", unit="transactions", count=20_000, ours=async_ours, raw=async_tasks)
for name, ours in (("stream_sync", stream_sync), ("stream_async", stream_async)):
    BENCH.compare(
        name,
        unit="transactions",
        count=10_000,
        ours=ours,
        raw=stream_raw,
        dramatiq=drain("dramatiq", lambda: redis_server().url),
    )
BENCH.compare("spans", unit="transactions", count=5_000, ours=spans_ours, raw=spans_by_hand)
BENCH.figure("memory_growth_mb", unit="MB for a million transactions", measure=memory_growth)
