"""Programs that tests run as separate processes: python -m tests.integration.queue.programs NAME VARIANT …"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from conquiet.queue import (
    AsyncQueueConsumer,
    AsyncRedisStreamsQueue,
    QueueConsumer,
    QueueError,
    RedisStreamsQueue,
    connect,
    connect_async,
    unique_consumer_name,
)
from tests.integration.queue.variants import settings


def say(*words: object) -> None:
    print(*words, flush=True)


# consume: run, run_recovery or iter_messages until SIGTERM, printing each step


class Telling:
    """Transactions that print their steps."""

    def begin(self) -> Telling:
        return self

    def commit(self) -> None:
        say("commit")

    def rollback(self) -> None:
        say("rollback")


class AsyncTelling:
    async def begin(self) -> AsyncTelling:
        return self

    async def commit(self) -> None:
        say("commit")

    async def rollback(self) -> None:
        say("rollback")


def consume(variant: str, url: str, how: str, block_ms: str) -> None:
    def former(*_: object) -> None:
        """The previous signal handler, which must be restored."""

    signal.signal(signal.SIGTERM, former)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may ignore it for background processes
    try:
        if variant == "sync":
            consume_sync(url, how, int(block_ms))
        else:
            asyncio.run(consume_async(url, how, int(block_ms)))
    except (RuntimeError, KeyboardInterrupt) as error:
        say("raised", type(error).__name__)
    say("handler restored" if signal.getsignal(signal.SIGTERM) is former else "handler lost")


def consume_sync(url: str, how: str, block_ms: int) -> None:
    config = settings(unique_consumer_name(), block_ms=block_ms, claim_idle_ms=30_000)

    def handle(message: Any, tx: Any) -> None:
        say("handling", message.id)
        if "wait" in message.payload:
            sys.stdin.readline()
        if "fail" in message.payload:
            raise RuntimeError

    with connect(url) as client:
        consumer = QueueConsumer(client, config)
        if how == "run":
            consumer.run(handler=handle, db_factory=Telling())
        elif how == "run_recovery":
            consumer.run_recovery(handler=handle, db_factory=Telling(), interval_ms=60_000)
        else:
            with consumer.stop_on_sigterm():
                for message in consumer.iter_messages():
                    handle(message, None)


async def consume_async(url: str, how: str, block_ms: int) -> None:
    config = settings(unique_consumer_name(), block_ms=block_ms, claim_idle_ms=30_000)

    async def handle(message: Any, tx: Any) -> None:
        say("handling", message.id)
        if "wait" in message.payload:
            await standard_input()
        if "fail" in message.payload:
            raise RuntimeError

    async with connect_async(url) as client:
        consumer = await AsyncQueueConsumer.create(client, config)
        if how == "run":
            await consumer.run(handler=handle, db_factory=AsyncTelling())
        elif how == "run_recovery":
            await consumer.run_recovery(handler=handle, db_factory=AsyncTelling(), interval_ms=60_000)
        else:
            with consumer.stop_on_sigterm():
                async for message in consumer.iter_messages():
                    await handle(message, None)


async def standard_input() -> None:
    """Wait for a line, without blocking the loop or leaving a thread that would delay Ctrl-C."""
    ready = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(sys.stdin.fileno(), ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(sys.stdin.fileno())
    sys.stdin.readline()


# fork: what a forked child can do with its parent's objects


def fork(variant: str, url: str) -> None:
    if variant == "sync":
        fork_sync(url)
    else:
        asyncio.run(fork_async(url))


def fork_sync(url: str) -> None:
    name = unique_consumer_name()
    with connect(url) as client:
        queue = RedisStreamsQueue(client, settings())
        consumer = QueueConsumer(client, settings())
        queue.enqueue({"before": "fork"})
        if (child := os.fork()) == 0:
            attempt("queue", lambda: queue.enqueue({"by": "child"}))
            attempt("consumer", lambda: consumer.next(100))
            with connect(url) as own:
                RedisStreamsQueue(own, settings(unique_consumer_name())).enqueue({"by": "a new object"})
            say("names differ" if unique_consumer_name() != name else "the same name")
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        queue.enqueue({"after": "fork"})
        say("parent read", [message.payload for message in queue.read(1000, 10)])


def attempt(what: str, call: Callable[[], object]) -> None:
    try:
        say(what, "worked", call())
    except QueueError as error:
        say(what, "refused:", error)


async def fork_async(url: str) -> None:
    name = unique_consumer_name()
    async with connect_async(url) as client:
        queue = await AsyncRedisStreamsQueue.create(client, settings())
        consumer = await AsyncQueueConsumer.create(client, settings())
        await queue.enqueue({"before": "fork"})
        if (child := os.fork()) == 0:
            # Python clears the running loop in a child, which therefore needs its own.
            attempt("queue", lambda: asyncio.run(queue.enqueue({"by": "child"})))
            attempt("consumer", lambda: asyncio.run(consumer.next(100)))
            asyncio.run(enqueue_by_a_new_object(url))
            say("names differ" if unique_consumer_name() != name else "the same name")
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0  # noqa: ASYNC222 - nothing else runs here
        await queue.enqueue({"after": "fork"})
        say("parent read", [message.payload for message in await queue.read(1000, 10)])


async def enqueue_by_a_new_object(url: str) -> None:
    async with connect_async(url) as own:
        queue = await AsyncRedisStreamsQueue.create(own, settings(unique_consumer_name()))
        await queue.enqueue({"by": "a new object"})


# unmeasured: the queue without a usable prometheus_client


def unmeasured(variant: str, url: str, obstacle: str) -> None:
    if obstacle == "not installed":
        sys.modules["prometheus_client"] = None  # importing it raises ImportError
    else:
        import prometheus_client

        prometheus_client.Gauge("conquiet_queue_messages_ack_total", "somebody else's")
    if variant == "sync":
        with connect(url) as client:
            queue = RedisStreamsQueue(client, settings())
            queue.enqueue_many([{}] * 3)
            messages = queue.read(1000, 10)
            say(f"delivered {len(messages)}, acknowledged {queue.ack_many(queue.claim_stale(0))}")
    else:
        asyncio.run(unmeasured_async(url))


async def unmeasured_async(url: str) -> None:
    async with connect_async(url) as client:
        queue = await AsyncRedisStreamsQueue.create(client, settings())
        await queue.enqueue_many([{}] * 3)
        messages = await queue.read(1000, 10)
        say(f"delivered {len(messages)}, acknowledged {await queue.ack_many(await queue.claim_stale(0))}")


if __name__ == "__main__":
    programs: dict[str, Callable[..., None]] = {"consume": consume, "fork": fork, "unmeasured": unmeasured}
    programs[sys.argv[1]](*sys.argv[2:])
