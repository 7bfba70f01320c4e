"""One description of a consumer, run on threads or on asyncio against the same source."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from conquiet.connectors import (
    AsyncIterableConnector,
    AsyncJobConnector,
    AsyncStreamConnector,
    IterableConnector,
    JobConnector,
    StreamConnector,
)
from conquiet.jobs import RetrySchedule, open_async_store, open_store
from conquiet.queue import AsyncRedisStreamsQueue, QueueConfig, RedisStreamsQueue, connect, connect_async
from conquiet.task import AsyncConsumerTask, ConsumeReport, ConsumerTask, Transaction
from conquiet.task.mixins.policies import BatchPolicy, ConcurrencyPolicy, ConsumerLoopPolicy, ConsumerPolicy

QUICK = RetrySchedule(max_retries=3, base_seconds=0.0, max_seconds=0.0)
VARIANTS = ("threads", "asyncio")


def policy(batch: int = 10, concurrency: int = 4, **loop: Any) -> ConsumerPolicy:
    return ConsumerPolicy(
        loop=ConsumerLoopPolicy(
            batch=BatchPolicy(size=batch), concurrency=ConcurrencyPolicy(value=concurrency), **loop
        )
    )


def nothing(*args: Any) -> None:
    """Do nothing."""


@dataclass
class Consumer:
    """What the task does with a transaction; `process` takes `seconds(tx)` before that."""

    variant: str
    process: Callable[[Transaction], Any] = nothing
    on_exception: Callable[[Transaction, Any], None] = nothing
    seconds: Callable[[Transaction], float] = lambda transaction: 0.0
    on_outcome: Callable[[Any], None] | None = None
    task: Any = field(init=False)

    def __post_init__(self) -> None:
        self.task = _OnThreads(self) if self.variant == "threads" else _OnAsyncio(self)

    def on_jobs(self, dsn: str, policy: ConsumerPolicy, **options: Any) -> ConsumeReport:
        if self.variant == "threads":
            with open_store(dsn, retry=QUICK) as store:
                connector = JobConnector(store, "q", **options)
                return self.task.consume_transactions(connector, policy, on_outcome=self.on_outcome)

        async def consume() -> ConsumeReport:
            async with await open_async_store(dsn, retry=QUICK) as store:
                connector = AsyncJobConnector(store, "q", **options)
                return await self.task.consume_transactions(connector, policy, on_outcome=self.on_outcome)

        return asyncio.run(consume())

    def on_stream(
        self, url: str, config: QueueConfig, policy: ConsumerPolicy, **options: Any
    ) -> ConsumeReport:
        if self.variant == "threads":
            with connect(url) as redis:
                connector = StreamConnector(RedisStreamsQueue(redis, config), **options)
                return self.task.consume_transactions(connector, policy, on_outcome=self.on_outcome)

        async def consume() -> ConsumeReport:
            async with connect_async(url) as redis:
                queue = await AsyncRedisStreamsQueue.create(redis, config)
                connector = AsyncStreamConnector(queue, **options)
                return await self.task.consume_transactions(connector, policy, on_outcome=self.on_outcome)

        return asyncio.run(consume())

    def on_items(self, items: Any, policy: ConsumerPolicy) -> ConsumeReport:
        if self.variant == "threads":
            return self.task.consume_transactions(
                IterableConnector(items), policy, on_outcome=self.on_outcome
            )

        async def consume() -> ConsumeReport:
            connector = AsyncIterableConnector(items)
            return await self.task.consume_transactions(connector, policy, on_outcome=self.on_outcome)

        return asyncio.run(consume())


class _OnThreads(ConsumerTask):
    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer

    def process_transaction(self, transaction: Transaction) -> Any:
        time.sleep(self._consumer.seconds(transaction))
        return self._consumer.process(transaction)

    def handle_transaction_exception(self, transaction: Transaction, exception: Any) -> None:
        self._consumer.on_exception(transaction, exception)


class _OnAsyncio(AsyncConsumerTask):
    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer

    async def process_transaction(self, transaction: Transaction) -> Any:
        await asyncio.sleep(self._consumer.seconds(transaction))
        return self._consumer.process(transaction)

    async def handle_transaction_exception(self, transaction: Transaction, exception: Any) -> None:
        self._consumer.on_exception(transaction, exception)
