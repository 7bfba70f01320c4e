"""asyncio calls cancelled at every await: each did happen or did not, and nothing is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from conquiet.jobs import AsyncJobStore, Job, JobState, JobStore, RetrySchedule, open_async_store
from conquiet.queue import AsyncRedisStreamsQueue, QueueConfig, QueueMessage, connect_async
from conquiet.verify.beside import hushed
from conquiet.verify.cancelling import Sweep, cancelled
from conquiet.verify.corner import StreamCorner
from conquiet.verify.findings import Check, Extent, asked, bound, judge, require
from conquiet.verify.history import History
from conquiet.verify.recording.jobs import RecordedBackend
from conquiet.verify.recording.streams import AsyncRecordedConsumer, RecordedOperations
from conquiet.verify.workers import GROUP

__all__ = ["job_cancellations", "stream_cancellations"]

_NAME = "asyncio calls cancelled at every await: nothing lost"
_SHORT = 0.2  # seconds: a lease whose claim may never have been heard of
_LONG = 60.0
_AFTER = {"ack": JobState.SUCCEEDED, "heartbeat": JobState.IN_FLIGHT}  # the others: Ready


def job_cancellations(store: JobStore, extent: Extent, folder: Path) -> list[Check]:
    return [Check(_NAME, lambda: _on_jobs(store, extent.cancels, folder / "cancels"))]


def stream_cancellations(corner: StreamCorner, extent: Extent, folder: Path) -> list[Check]:
    return [Check(_NAME, lambda: _on_streams(corner, extent.cancels, folder / "cancels"))]


def _on_jobs(store: JobStore, cancels: int, path: Path) -> str:
    asked(cancels, "cancels")

    async def main() -> Sweep:
        with History(path) as history:
            opened = await open_async_store(store.dsn, retry=RetrySchedule(base_seconds=0.0))
            async with opened as calling:
                jobs = _Jobs(calling, history)
                await jobs.sweep(cancels)
                await jobs.drain()
                return jobs.swept

    with hushed():
        sweep = asyncio.run(main())
    judge(path, fenced=True)
    return _told(sweep)


class _Jobs:
    """The calls of an asyncio store, each on a job in a queue of its own."""

    def __init__(self, store: AsyncJobStore, history: History) -> None:
        self._store = store
        self._history = history
        self._backend = RecordedBackend(store.operations.backend, history)
        store.operations.backend = self._backend
        self._queues: list[str] = []
        self.swept = Sweep(["enqueue", "claim", "ack", "nack", "heartbeat", "release"])

    async def sweep(self, count: int) -> None:
        store = self._store
        while self.swept.cancelled < count:
            name, nth = self.swept.next()
            queue = f"cancelled-{len(self._queues)}"
            self._queues.append(queue)
            held: Job | None = None
            if name != "enqueue":
                await self._enqueue(queue)
            if name not in ("enqueue", "claim"):
                (held,) = await store.claim(queue, lease_ttl=_LONG)
                self._handle(held)
            struck, _ = await cancelled(self._call(name, queue, held), nth)
            self.swept.note(name, struck)
            if held is not None:
                await self._settle_if_held(held, name)

    def _call(self, name: str, queue: str, held: Job | None) -> Coroutine[Any, Any, Any]:
        store = self._store
        if name == "enqueue":
            return self._enqueue(queue)
        if held is None:
            return store.claim(queue, lease_ttl=_SHORT)
        settle: dict[str, Callable[[Job], Coroutine[Any, Any, Any]]] = {
            "ack": store.ack,
            "nack": store.nack,
            "heartbeat": store.heartbeat,
            "release": store.release,
        }
        return settle[name](held)

    async def _enqueue(self, queue: str) -> None:
        with self._history.operation("enqueue", queue):
            await self._store.enqueue(queue, {}, id=queue)

    def _handle(self, job: Job) -> None:
        self._backend.begin_handling(job)
        self._backend.end_handling(job)

    async def _settle_if_held(self, held: Job, name: str) -> None:
        """It happened, or it did not; in no case half."""
        found = await self._store.get(held.id)
        after = _AFTER.get(name, JobState.READY)
        require(
            found is not None and found.state in (JobState.IN_FLIGHT, after),
            f"a job whose {name} was cancelled is {found.state if found else 'gone'}",
        )
        if found is not None and found.state is JobState.IN_FLIGHT:
            await self._store.ack(held)

    async def drain(self) -> None:
        """Until nothing is left, also of claims that nobody heard the answer of."""
        deadline = asyncio.get_running_loop().time() + _LONG
        left = set(self._queues)
        while left:
            for start in range(0, len(left), 50):
                for job in await self._store.claim(sorted(left)[start : start + 50], 50, lease_ttl=_LONG):
                    self._handle(job)
                    await self._store.ack(job)
            stats = await self._store.stats()
            left = {q for q in left if q in stats and not stats[q].succeeded}
            require(asyncio.get_running_loop().time() < deadline, f"{len(left)} jobs could not be drained")
            await asyncio.sleep(0.02 if left else 0.0)


def _on_streams(corner: StreamCorner, cancels: int, path: Path) -> str:
    asked(cancels, "cancels")
    # 1 ms: a hold here is nobody's for long, as everything is claimed at once.
    config = QueueConfig(corner.key("cancelled"), GROUP, "cancelled", block_ms=1_000, claim_idle_ms=1)

    async def main() -> Sweep:
        with History(path) as history:
            async with connect_async(corner.url, max_connections=2) as redis:
                consumer = AsyncRecordedConsumer(redis, config, history)
                await consumer.create_group()
                queue = AsyncRedisStreamsQueue(redis, config)
                queue._operations = RecordedOperations(queue._operations, history)
                return await _sweep_consumer(consumer, queue, history, cancels)

    with hushed():
        sweep = asyncio.run(main())
    judge(path, fenced=False)
    return _told(sweep)


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


def _told(sweep: Sweep) -> str:
    places = len(list(sweep.most_awaits.elements()))
    return f"{sweep.cancelled} cancelled at {places} awaits of {len(sweep.most_awaits)} calls, 0 lost; {bound(sweep.cancelled)}"
