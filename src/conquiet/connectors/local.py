"""Items of the in-process queue as transactions. They exist only in this process: nothing is redelivered after it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from functools import partial

from conquiet.checks import checked_seconds
from conquiet.connectors.shells import AsyncFetches, Fetches, check_source
from conquiet.errors import LocalConfigError
from conquiet.flow import Call, Flow, Signal
from conquiet.local import PriorityDelayQueue, QueueItem
from conquiet.task import Outcome, Transaction

__all__ = ["AsyncLocalQueueConnector", "LocalQueueConnector"]


class _LocalQueue:
    """The job is the payload, its item is in `metadata["item"]`; the id is the item's number in its queue.

    Nothing is acknowledged: a failed job is no longer in the queue; to retry it, enqueue it again. Items that were
    fetched and not started when the loop ends go back to their place.
    """

    def __init__(self, queue: PriorityDelayQueue, *, poll_timeout: float = 5.0) -> None:
        """`poll_timeout`: how many seconds a fetch waits for the first item."""
        check_source(self, queue, PriorityDelayQueue)
        self._queue = queue
        self._poll_timeout = checked_seconds("poll_timeout", poll_timeout, error=LocalConfigError)

    def fetch(self, batch_size: int) -> Flow[list[Transaction]]:
        item = self._queue.dequeue(block=False)
        if item is None and self._poll_timeout > 0:
            item = yield Call(self._wait)
        items: list[QueueItem] = []
        while item is not None:
            items.append(item)
            item = self._queue.dequeue(block=False) if len(items) < batch_size else None
        return [Transaction(str(one.seq), one.job, {"item": one}) for one in items]

    def _wait(self) -> QueueItem | Awaitable[QueueItem | None] | None:
        raise NotImplementedError

    def _put_back(self, items: Sequence[QueueItem]) -> None:
        for item in items:
            self._queue.put_back(item)

    def _put_back_unbegun(self, outcomes: Sequence[Outcome]) -> None:
        unbegun = [outcome.transaction for outcome in outcomes if not outcome.attempts]
        self._put_back([transaction.metadata["item"] for transaction in unbegun if transaction is not None])


class LocalQueueConnector(_LocalQueue, Fetches):
    """A `PriorityDelayQueue` for `ConsumerMixin`."""

    def _wait(self) -> QueueItem | None:
        return self._queue.dequeue(timeout=self._poll_timeout)

    def release(self, outcomes: Sequence[Outcome]) -> None:
        self._put_back_unbegun(outcomes)


class AsyncLocalQueueConnector(_LocalQueue, AsyncFetches):
    """A `PriorityDelayQueue` for `AsyncConsumerMixin`."""

    async def _wait(self) -> QueueItem | None:
        # On a thread, because producers are threads. On cancellation it is stopped, and an item it took is put back.
        stop = Signal()
        waiting = asyncio.get_running_loop().run_in_executor(
            None, partial(self._queue.dequeue, timeout=self._poll_timeout, stop=stop)
        )
        try:
            return await asyncio.shield(waiting)
        except asyncio.CancelledError:
            stop.set()
            waiting.add_done_callback(self._return)
            raise

    def _return(self, waiting: asyncio.Future[QueueItem | None]) -> None:
        if (item := waiting.result()) is not None:
            self._queue.put_back(item)

    async def release_async(self, outcomes: Sequence[Outcome]) -> None:
        self._put_back_unbegun(outcomes)
