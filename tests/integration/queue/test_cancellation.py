"""Cancelling an awaiting call, at any point: it ends, and its connection never holds a stale reply."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import redis.asyncio

from conquiet.queue import AsyncRedisStreamsQueue, QueueMessage, connect_async
from tests.integration.queue.stream import Stream
from tests.integration.queue.variants import GROUP, STREAM, settings

PROMPTLY = 5.0  # far below the blocking reads of these tests, far above the time needed
FOR_LONG = 60_000


@asynccontextmanager
async def connected(url: str, connections: int = 2) -> AsyncIterator[tuple[Any, Any]]:
    """A queue on a pool that a leaked connection would soon exhaust, and a plain client."""
    async with (
        connect_async(url, max_connections=connections) as client,
        redis.asyncio.Redis.from_url(url, decode_responses=True) as raw,
    ):
        yield await AsyncRedisStreamsQueue.create(client, settings()), raw


async def cancel(call: Coroutine[Any, Any, Any], after: Callable[[], Awaitable[None]]) -> Any:
    """The result of a call that completed although it was cancelled, or "cancelled"."""
    task = asyncio.create_task(call)
    await after()
    task.cancel()
    await asyncio.wait([task], timeout=PROMPTLY)
    assert task.done(), "the call went on after its cancellation"
    return "cancelled" if task.cancelled() else task.result()


def turns(number: int) -> Callable[[], Awaitable[None]]:
    async def let_the_loop_turn() -> None:
        for _ in range(number):
            await asyncio.sleep(0)

    return let_the_loop_turn


async def check_replies(queue: Any, raw: Any, number: int) -> None:
    entry_id = await queue.enqueue({"check": number})
    ((_, fields),) = await raw.xrange(STREAM, entry_id, entry_id)
    assert json.loads(fields["data"]) == {"check": number}


CALLS: dict[str, Callable[[Any], Coroutine[Any, Any, Any]]] = {
    "enqueue": lambda queue: queue.enqueue({"cancelled": True}),
    "enqueue_many": lambda queue: queue.enqueue_many([{"cancelled": True}] * 3),
    "read": lambda queue: queue.read(1000, 2),
    "ack": lambda queue: queue.ack(QueueMessage("1-1", {}, STREAM, GROUP)),
    "ack_many": lambda queue: queue.ack_many([QueueMessage("1-1", {}, STREAM, GROUP)]),
    "claim_stale": lambda queue: queue.claim_stale(0, 2),
    "backlog_stats": lambda queue: queue.backlog_stats(),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_cancelled_at_any_turn_of_the_loop_leaves_no_reply_behind(redis_url: str, name: str) -> None:
    async def main() -> set[str]:
        outcomes = set()
        async with connected(redis_url) as (queue, raw):
            for number in range(30):
                outcome = await cancel(CALLS[name](queue), after=turns(number))
                outcomes.add("cancelled" if outcome == "cancelled" else "finished")
                await check_replies(queue, raw, number)
        return outcomes

    assert "cancelled" in asyncio.run(main())


def test_a_call_cancelled_at_any_moment_leaves_no_reply_behind(redis_url: str) -> None:
    """By time, so that replies are on their way, half read, or just arrived."""
    chance = random.Random(20)

    async def main() -> list[str]:
        outcomes = []
        async with connected(redis_url) as (queue, raw):
            for number in range(200):
                moment = chance.uniform(0, 0.001)
                outcome = await cancel(
                    CALLS[chance.choice(list(CALLS))](queue),
                    after=partial(asyncio.sleep, moment),
                )
                outcomes.append("cancelled" if outcome == "cancelled" else "finished")
                await check_replies(queue, raw, number)
        return outcomes

    outcomes = asyncio.run(main())
    assert outcomes.count("cancelled") > 5
    assert outcomes.count("finished") > 5


@pytest.mark.parametrize("from_turn", [0, 10, 20])
def test_a_blocking_read_ends_at_once_at_whatever_turn_it_is_cancelled(
    redis_url: str, from_turn: int
) -> None:
    async def main() -> None:
        async with connected(redis_url) as (queue, raw):
            for number in range(from_turn, from_turn + 10):
                assert await cancel(queue.read(FOR_LONG), after=turns(number)) == "cancelled"
            await check_replies(queue, raw, 1)
            assert [m.payload for m in await queue.read(1000)] == [{"check": 1}]

    asyncio.run(main())


def test_a_read_that_waits_in_redis_ends_at_once_and_redis_forgets_it(redis_url: str, stream: Stream) -> None:
    async def main() -> None:
        async with connected(redis_url) as (queue, raw):

            async def blocked() -> None:
                while (await raw.info("clients"))["blocked_clients"] != 1:
                    pass

            for _ in range(5):
                assert await cancel(queue.read(FOR_LONG), after=blocked) == "cancelled"
                while (await raw.info("clients"))["blocked_clients"] != 0:
                    pass
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await queue.read(FOR_LONG)
            await check_replies(queue, raw, 1)
            assert len(await queue.read(1000)) == 1  # none of the cancelled reads took it

    asyncio.run(main())


def test_cancelled_reads_lose_no_message(redis_url: str, stream: Stream) -> None:
    """Each message is returned to one reader, or is still pending or undelivered."""
    chance = random.Random(7)

    async def main() -> tuple[set[str], list[str]]:
        async with connected(redis_url, connections=6) as (queue, _):
            ids = await queue.enqueue_many({"n": number} for number in range(300))
            returned: list[str] = []

            async def read_on() -> None:
                for _ in range(25):
                    moment = chance.uniform(0, 0.003)
                    outcome = await cancel(queue.read(50, 3), after=partial(asyncio.sleep, moment))
                    if outcome != "cancelled":
                        assert all(ids[message.payload["n"]] == message.id for message in outcome)
                        returned.extend(message.id for message in outcome)

            await asyncio.gather(*(read_on() for _ in range(5)))
            rest = await queue.read(1000, 1000)
            return {*ids}, returned + [message.id for message in rest]

    ids, returned = asyncio.run(main())
    assert len(returned) == len(set(returned))
    assert set(returned) <= set(stream.pending())
    assert set(stream.pending()) == ids


def test_calls_side_by_side_get_their_own_replies(redis_url: str) -> None:
    async def main() -> None:
        async with connected(redis_url, connections=20) as (queue, raw):
            for _ in range(5):
                tasks = [asyncio.create_task(queue.enqueue({"n": number})) for number in range(20)]
                await asyncio.sleep(0.001)
                for task in tasks[::3]:
                    task.cancel()
                ids = await asyncio.gather(*tasks, return_exceptions=True)
                stored = dict(await raw.xrange(STREAM))
                for number, entry_id in enumerate(ids):
                    if isinstance(entry_id, str):
                        assert json.loads(stored[entry_id]["data"]) == {"n": number}
                    else:
                        assert isinstance(entry_id, asyncio.CancelledError)

    asyncio.run(main())
