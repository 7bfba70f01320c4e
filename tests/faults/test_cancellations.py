"""Cancellation at every await of the asyncio store and consumer: each call happened or did not, and nothing is lost."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

from conquiet.embedded import RedisServer
from conquiet.flow import run_async
from conquiet.jobs import AsyncJobStore, Job, JobState, RetrySchedule, open_async_store, open_store
from conquiet.queue import AsyncQueueConsumer, AsyncRedisStreamsQueue, QueueConfig, connect_async
from conquiet.verify.cancellation_sweep import Sweep, cancelled
from tests.campaign import campaign_size
from tests.faults.figures import Record
from tests.integration.jobs.background import until

Operation = Callable[[], Coroutine[Any, Any, Any]]
TTL = 0.2
RETRY = RetrySchedule(base_seconds=0.0)


async def sweep_store(store: AsyncJobStore, count: int) -> tuple[Sweep, list[str]]:
    names = ["enqueue", "enqueue_many", "claim", "ack", "nack", "heartbeat", "release", "get", "stats"]
    if store.capabilities.name == "postgresql":
        names += [f"connect and {name}" for name in ("enqueue", "claim", "ack", "nack")]
    sweep = Sweep(names)
    told: list[str] = []  # acknowledged enqueues
    number = 0
    while sweep.cancelled < count:
        number += 1
        chosen, nth = sweep.next()
        name = chosen.removeprefix("connect and ")
        held: Job | None = None
        queue = f"q{number}"
        if not name.startswith("enqueue"):
            told.append((await store.enqueue(queue, {"n": number})).id)
        if name in ("ack", "nack", "heartbeat", "release"):
            (held,) = await store.claim(queue, lease_ttl=60.0)
            assert held.payload == {"n": number}  # not the reply to an earlier call
        calls: dict[str, Operation] = {
            "enqueue": partial(store.enqueue, queue, {}),
            "enqueue_many": partial(store.enqueue_many, queue, [{}, {}]),
            "claim": partial(store.claim, queue, lease_ttl=TTL),
            "ack": partial(store.ack, held),
            "nack": partial(store.nack, held, "no"),
            "heartbeat": partial(store.heartbeat, held),
            "release": partial(store.release, held),
            "get": partial(store.get, told[-1] if told else "none"),
            "stats": lambda: store.stats(),
        }
        if chosen != name:
            await run_async(store.operations.backend._drop_connections())  # type: ignore[attr-defined]
        struck, given = await cancelled(calls[name](), nth)
        sweep.note(chosen, struck)
        if name == "enqueue" and given is not None:
            told.append(given.id)
        elif name == "enqueue_many" and given is not None:
            told += given
        if held is not None:
            await settle_if_held(store, held, name)
        elif name == "enqueue_many":
            assert len(await store.list(queue=queue)) in (0, 2)  # all or none
    return sweep, told


async def settle_if_held(store: AsyncJobStore, held: Job, name: str) -> None:
    """The settle happened or did not, never half."""
    found = await store.get(held.id)
    assert found is not None
    after = {"ack": JobState.SUCCEEDED, "heartbeat": JobState.IN_FLIGHT}.get(name, JobState.READY)
    assert found.state in (JobState.IN_FLIGHT, after)
    if found.state is JobState.IN_FLIGHT:
        await store.ack(held)


def drain(dsn: str, told: list[str]) -> int:
    """How many acknowledged jobs are missing when all others are done."""
    with open_store(dsn) as store:
        while queues := [
            name for name, q in store.stats().items() if q.ready + q.delayed + q.in_flight + q.expired
        ]:
            for start in range(0, len(queues), 100):
                store.ack_many(store.claim(queues[start : start + 100], 1_000, lease_ttl=60.0))
        return sum(
            (job := store.get(job_id)) is None or job.state is not JobState.SUCCEEDED for job_id in told
        )


@pytest.mark.campaign
@pytest.mark.timeout(180)
@pytest.mark.parametrize(("kind", "full"), [("sqlite", 3_000), ("postgresql", 3_000)])
def test_the_store_cancelled_at_every_await(
    request: pytest.FixtureRequest, tmp_path: Path, record_figure: Record, kind: str, full: int
) -> None:
    dsn = f"sqlite:///{tmp_path}/jobs.db" if kind == "sqlite" else request.getfixturevalue("postgres_dsn")
    count = campaign_size(full)

    async def main() -> tuple[Sweep, list[str]]:
        async with await open_async_store(dsn, retry=RETRY) as store:
            swept = await sweep_store(store, count)
            if kind == "postgresql":
                until(lambda: connections(dsn) <= (2, 0))  # none leaked, none with an open transaction
            return swept

    sweep, told = asyncio.run(main())
    lost = drain(dsn, told)
    record_figure(
        f"{kind}: cancelled at every await of AsyncJobStore",
        n=sweep.cancelled,
        lost=lost,
        awaits=dict(sweep.most_awaits),
    )
    assert lost == 0


def connections(dsn: str) -> tuple[int, int]:
    """How many connections there are, and how many of them are in a transaction."""
    with psycopg.connect(dsn, autocommit=True) as admin:
        row = admin.execute(
            "SELECT count(*), count(*) FILTER (WHERE state LIKE 'idle in%') FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        ).fetchone()
    assert row is not None
    return row


@pytest.mark.campaign
@pytest.mark.timeout(180)
def test_the_consumer_cancelled_at_every_await(
    redis_url: str, redis_server: RedisServer, record_figure: Record
) -> None:
    count = campaign_size(4_000)  # on each available server: with the stores, 10,000 on one alone
    config = QueueConfig("cancelled", "group", "alice", block_ms=1_000)

    async def main() -> tuple[Sweep, set[str], set[str]]:
        async with connect_async(redis_url, max_connections=2) as client, connect_async(redis_url) as raw:
            consumer = await AsyncQueueConsumer.create(client, config)
            queue = AsyncRedisStreamsQueue(client, config)
            sweep = Sweep(["next", "ack", "claim_stale", "backlog_stats", "enqueue"])
            told: set[str] = set()
            done: set[str] = set()
            while sweep.cancelled < count:
                entry_id = await queue.enqueue({"n": len(told)})
                ((_, fields),) = await raw.xrange(config.stream_key, entry_id, entry_id)
                assert json.loads(fields[b"data"]) == {
                    "n": len(told)
                }  # its own reply, not that of an earlier call
                told.add(entry_id)
                name, nth = sweep.next()
                message = await consumer.next() if name == "ack" else None
                calls: dict[str, Callable[[], Awaitable[Any]]] = {
                    "next": lambda: consumer.next(),
                    "ack": partial(consumer.ack, message),
                    "claim_stale": lambda: consumer.claim_stale(0, 2),
                    "backlog_stats": lambda: consumer.backlog_stats(),
                    "enqueue": lambda: queue.enqueue({"perhaps": True}),
                }
                struck, given = await cancelled(calls[name](), nth)  # type: ignore[arg-type]
                sweep.note(name, struck)
                if message is not None:
                    done.add(message.id)  # acknowledged, or still pending
                if name == "enqueue" and given is not None:
                    told.add(given)
            while rest := [*await consumer.claim_stale(0, 1_000), *await queue.read(50, 1_000)]:
                done.update(message.id for message in rest)
                await queue.ack_many(rest)
            assert (await queue.backlog_stats()).pending == 0
            return sweep, told, done

    sweep, told, done = asyncio.run(main())
    record_figure(
        f"{redis_server.flavour}: cancelled at every await of AsyncQueueConsumer",
        n=sweep.cancelled,
        lost=len(told - done),
        awaits=dict(sweep.most_awaits),
    )
    assert told <= done
