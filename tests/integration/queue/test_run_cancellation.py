"""Cancelling AsyncQueueConsumer.run: before the commit everything is rolled back, after that everything is finished."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from conquiet.queue import AsyncQueueConsumer, connect_async
from tests.integration.queue.monitor import Monitor
from tests.integration.queue.stream import Stream
from tests.integration.queue.variants import settings

PROMPTLY = 5.0  # far below the blocking reads of these tests, far above the time needed
FOR_LONG = 60_000


class Steps:
    """A handler and its transactions; a test can wait for each step and hold it up."""

    def __init__(self, hold: str) -> None:
        self.events: list[str] = []
        self.reached = asyncio.Event()
        self.go_on = asyncio.Event()
        self._hold = hold

    async def step(self, name: str) -> None:
        if name == self._hold:
            self.reached.set()
            await self.go_on.wait()
        self.events.append(name)

    async def begin(self) -> Steps:
        return self

    async def handle(self, message: Any, tx: Any) -> None:
        await self.step("handler")

    async def commit(self) -> None:
        await self.step("commit")

    async def rollback(self) -> None:
        await self.step("rollback")


async def run_and_cancel(url: str, hold: str, cancels: int = 1) -> list[str]:
    async with connect_async(url) as client:
        consumer = await AsyncQueueConsumer.create(client, settings())
        steps = Steps(hold)
        running = asyncio.create_task(consumer.run(handler=steps.handle, db_factory=steps))
        await steps.reached.wait()
        for _ in range(cancels):
            running.cancel()
            await asyncio.sleep(0)
        steps.go_on.set()
        await asyncio.wait([running], timeout=PROMPTLY)
        assert running.cancelled()
        return steps.events


@pytest.mark.clause("C-02", "C-21")
def test_a_run_cancelled_in_the_handler_rolls_back(redis_url: str, stream: Stream) -> None:
    ids = stream.add("{}", "{}")
    assert asyncio.run(run_and_cancel(redis_url, hold="handler")) == ["rollback"]
    assert stream.pending() == {ids[0]: "alice"}


@pytest.mark.parametrize("cancels", [1, 3])
def test_a_run_cancelled_in_the_commit_finishes_commit_and_ack(
    redis_url: str, stream: Stream, monitor: Monitor, cancels: int
) -> None:
    (entry_id, _) = stream.add("{}", "{}")
    monitor.commands()
    assert asyncio.run(run_and_cancel(redis_url, hold="commit", cancels=cancels)) == ["handler", "commit"]
    assert [words[-1] for words in monitor.commands("XREADGROUP", "XACK")] == [
        ">",
        entry_id,
    ]  # no further read
    assert stream.pending() == {}


def test_a_rollback_is_finished_however_often_it_is_cancelled(redis_url: str, stream: Stream) -> None:
    async def main() -> list[str]:
        async with connect_async(redis_url) as client:
            consumer = await AsyncQueueConsumer.create(client, settings())
            steps = Steps("rollback")

            def fail(message: Any, tx: Any) -> None:
                raise RuntimeError("no")

            running = asyncio.create_task(consumer.run(handler=fail, db_factory=steps))
            await steps.reached.wait()
            for _ in range(3):
                running.cancel()
                await asyncio.sleep(0)
            steps.go_on.set()
            await asyncio.wait([running], timeout=PROMPTLY)
            assert isinstance(running.exception(), RuntimeError)  # the handler's own error is raised
            return steps.events

    stream.add("{}")
    assert asyncio.run(main()) == ["rollback"]
    assert len(stream.pending()) == 1


@pytest.mark.parametrize("method", ["run", "run_recovery"])
def test_an_idle_run_ends_at_once_when_it_is_cancelled(
    redis_url: str, stream: Stream, monitor: Monitor, method: str
) -> None:
    waits_with = {"run": "XREADGROUP", "run_recovery": "XPENDING"}[method]

    async def main() -> None:
        async with connect_async(redis_url) as client:
            consumer = await AsyncQueueConsumer.create(client, settings(block_ms=FOR_LONG))
            steps = Steps("never")
            options = {"interval_ms": FOR_LONG} if method == "run_recovery" else {}
            call = getattr(consumer, method)(handler=steps.handle, db_factory=steps, **options)
            running = asyncio.create_task(call)
            await asyncio.to_thread(monitor.wait_for, waits_with)
            running.cancel()
            await asyncio.wait([running], timeout=PROMPTLY)
            assert running.cancelled()
            stream.add('{"n": 1}')
            message = await consumer.next(1000)  # the same object still works
            assert message is not None
            assert message.payload == {"n": 1}

    monitor.commands()
    asyncio.run(main())
