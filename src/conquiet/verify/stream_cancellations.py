"""asyncio calls on a Redis stream cancelled at every await: each happened entirely or not at all; nothing is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from conquiet.queue import AsyncRedisStreamsQueue, QueueConfig, QueueMessage, connect_async
from conquiet.verify.background import hushed
from conquiet.verify.cancellation_sweep import CHECK_NAME, Sweep, cancelled, told
from conquiet.verify.findings import Check, Extent, asked, judge
from conquiet.verify.history import History
from conquiet.verify.recording.streams import AsyncRecordedConsumer, RecordedOperations
from conquiet.verify.scratch_space import StreamScratch
from conquiet.verify.stream_worker import GROUP

__all__ = ["stream_cancellations"]


def stream_cancellations(scratch: StreamScratch, extent: Extent, folder: Path) -> list[Check]:
    return [Check(CHECK_NAME, lambda: _on_streams(scratch, extent.cancels, folder / "cancels"))]


def _on_streams(scratch: StreamScratch, cancels: int, path: Path) -> str:
    asked(cancels, "cancels")
    # 1 ms: holds are short, because the check claims everything immediately.
    config = QueueConfig(scratch.key("cancelled"), GROUP, "cancelled", block_ms=1_000, claim_idle_ms=1)

    async def main() -> Sweep:
        with History(path) as history:
            async with connect_async(scratch.url, max_connections=2) as redis:
                consumer = AsyncRecordedConsumer(redis, config, history)
                await consumer.create_group()
                queue = AsyncRedisStreamsQueue(redis, config)
                queue.operations = RecordedOperations(queue.operations, history)
                return await _sweep_consumer(consumer, queue, history, cancels)

    with hushed():
        sweep = asyncio.run(main())
    judge(path, fenced=False)
    return told(sweep)


async def _sweep_consumer(
    consumer: AsyncRecordedConsumer, queue: AsyncRedisStreamsQueue, history: History, count: int
) -> Sweep:
    sweep = Sweep(["next", "ack", "claim_stale", "enqueue"])
    name_of_consumer = consumer.config.consumer_name

    def handle(message: QueueMessage) -> None:
        with history.operation("handle", message.id, holder=name_of_consumer):
            pass

    while sweep.cancelled < count:
        name, nth = sweep.next()
        await queue.enqueue({"n": sweep.cancelled})
        message = await consumer.next() if name == "ack" else None
        call: Coroutine[Any, Any, Any]
        if message is not None:
            handle(message)
            call = consumer.ack(message)
        elif name == "next":
            call = consumer.next()
        elif name == "claim_stale":
            call = consumer.claim_stale(1, 2)
        else:
            call = queue.enqueue({"perhaps": True})
        struck, _ = await cancelled(call, nth)
        sweep.note(name, struck)
    while (await queue.backlog_stats()).pending or (await queue.backlog_stats()).lag:
        for message in [*await consumer.claim_stale(1, 1_000), *await queue.read(20, 1_000)]:
            handle(message)
            await consumer.ack(message)
    return sweep
