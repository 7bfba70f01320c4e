"""asyncio calls on a job store cancelled at every await: each happened entirely or not at all, and nothing is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from conquiet.jobs import AsyncJobStore, Job, JobState, JobStore, RetrySchedule, open_async_store
from conquiet.verify.background import hushed
from conquiet.verify.cancellation_sweep import CHECK_NAME, Sweep, cancelled, told
from conquiet.verify.findings import Check, Extent, asked, judge, require
from conquiet.verify.history import History
from conquiet.verify.recording.jobs import RecordedBackend

__all__ = ["job_cancellations"]

_SHORT = 0.2  # seconds: for claims whose answer may be lost
_LONG = 60.0
_AFTER = {"ack": JobState.SUCCEEDED, "heartbeat": JobState.IN_FLIGHT}  # after the other calls: Ready


def job_cancellations(store: JobStore, extent: Extent, folder: Path) -> list[Check]:
    return [Check(CHECK_NAME, lambda: _on_jobs(store, extent.cancels, folder / "cancels"))]


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
    return told(sweep)


class _Jobs:
    """The calls of an asyncio store, each on a job in its own queue."""

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
        """The call happened entirely or not at all; acknowledge the job if it is still held."""
        found = await self._store.get(held.id)
        after = _AFTER.get(name, JobState.READY)
        require(
            found is not None and found.state in (JobState.IN_FLIGHT, after),
            f"a job whose {name} was cancelled is {found.state if found else 'gone'}",
        )
        if found is not None and found.state is JobState.IN_FLIGHT:
            await self._store.ack(held)

    async def drain(self) -> None:
        """Handle everything that is left, including the jobs of claims whose answer was lost."""
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
