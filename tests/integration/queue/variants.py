"""Both variants of the queue behind one interface, so that every test is written once.

`SyncVariant` gives the plain classes. `AsyncVariant` gives the asyncio classes, each behind a `Blocking` front that
runs its coroutines on the event loop of a thread: calls block, and may come from several threads at the same time.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Iterator
from typing import Any

from conquiet.payload import DEFAULT_LIMITS, PayloadLimits
from conquiet.queue import (
    AsyncQueueConsumer,
    AsyncRedisStreamsQueue,
    QueueConfig,
    QueueConsumer,
    RedisStreamsQueue,
    connect,
    connect_async,
)
from tests.integration.queue.recording import AsyncRecording, Recording

STREAM, GROUP = "orders", "billing"


def settings(consumer: str = "alice", **changes: Any) -> QueueConfig:
    return QueueConfig(**{"stream_key": STREAM, "consumer_group": GROUP, "consumer_name": consumer} | changes)


class SyncVariant:
    name = "sync"

    def __init__(self, url: str) -> None:
        self.url = url
        self._clients: list[Any] = []

    def client(self, url: str | None = None, **options: Any) -> Any:
        """A client as the queue makes it; closed at the end of the test."""
        return self.keep(connect(url or self.url, **options))

    def keep(self, client: Any) -> Any:
        self._clients.append(client)
        return client

    def queue(
        self,
        consumer: str = "alice",
        *,
        client: Any = None,
        limits: PayloadLimits = DEFAULT_LIMITS,
        **changes: Any,
    ) -> Any:
        return RedisStreamsQueue(client or self.client(), settings(consumer, **changes), limits=limits)

    def consumer(self, consumer: str = "alice", *, client: Any = None, **changes: Any) -> Any:
        return QueueConsumer(client or self.client(), settings(consumer, **changes))

    def close(self) -> None:
        for client in self._clients:
            client.close()


class AsyncVariant:
    name = "async"

    def __init__(self, url: str, loop: LoopThread) -> None:
        self.url = url
        self._loop = loop
        self._clients: list[Any] = []

    def client(self, url: str | None = None, **options: Any) -> Any:
        return self.keep(connect_async(url or self.url, **options))

    def keep(self, client: Any) -> Any:
        self._clients.append(client)
        return client

    def queue(
        self,
        consumer: str = "alice",
        *,
        client: Any = None,
        limits: PayloadLimits = DEFAULT_LIMITS,
        **changes: Any,
    ) -> Any:
        config = settings(consumer, **changes)
        made = AsyncRedisStreamsQueue.create(client or self.client(), config, limits=limits)
        return Blocking(self._loop.wait(made), self._loop)

    def consumer(self, consumer: str = "alice", *, client: Any = None, **changes: Any) -> Any:
        made = AsyncQueueConsumer.create(client or self.client(), settings(consumer, **changes))
        return BlockingConsumer(self._loop.wait(made), self._loop)

    def close(self) -> None:
        for client in self._clients:
            self._loop.wait(client.aclose())


class LoopThread:
    """An event loop on its own thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="event loop of the tests", daemon=True)
        self._thread.start()

    def wait(self, awaitable: Any) -> Any:
        """Wait for the awaitable and return or raise its result; from any thread."""

        async def outcome() -> Any:
            return await awaitable

        return asyncio.run_coroutine_threadsafe(outcome(), self._loop).result(timeout=60)

    def close(self) -> None:
        self._closing = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self) -> None:
        while not self._closing:
            try:
                self._loop.run_forever()
            except (KeyboardInterrupt, SystemExit):
                continue  # asyncio also lets these out of the loop; the caller gets them from the task


class Blocking:
    """The methods of an object, with its coroutines run to their end."""

    def __init__(self, target: Any, loop: LoopThread) -> None:
        self._target = target
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._target, name)
        if not callable(attribute):
            return attribute

        def call(*args: Any, **options: Any) -> Any:
            value = attribute(*args, **options)
            return self._loop.wait(value) if inspect.isawaitable(value) else value

        return call


class BlockingConsumer(Blocking):
    def iter_messages(self) -> Iterator[Any]:
        messages = self._target.iter_messages()
        try:
            while (message := self._loop.wait(anext(messages, None))) is not None:
                yield message
        finally:
            self._loop.wait(messages.aclose())

    def run(self, **arguments: Any) -> None:
        self._loop.wait(self._target.run(**_awaitable(arguments)))

    def run_recovery(self, **arguments: Any) -> None:
        self._loop.wait(self._target.run_recovery(**_awaitable(arguments)))


def _awaitable(arguments: dict[str, Any]) -> dict[str, Any]:
    """The same handlers and transactions as coroutines, as an asyncio program has them."""
    if isinstance(arguments["db_factory"], Recording):
        arguments["db_factory"] = AsyncRecording(arguments["db_factory"])
    for name in ("handler", "on_malformed"):
        if arguments.get(name) is not None and not inspect.iscoroutinefunction(arguments[name]):
            arguments[name] = _coroutine_function(arguments[name])
    return arguments


def _coroutine_function(handler: Callable[..., None]) -> Callable[..., Any]:
    async def handle(message: Any, tx: Any) -> None:
        await asyncio.sleep(0)
        handler(message, tx)

    return handle
