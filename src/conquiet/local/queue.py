"""The in-process priority and delay queue. Its items are lost when the process ends."""

from __future__ import annotations

import threading
from bisect import bisect_left
from heapq import heappop, heappush, heapreplace
from itertools import count
from typing import Any, TypedDict

from conquiet.checks import checked_seconds
from conquiet.clock import SYSTEM_CLOCK, Clock, Parker, utc
from conquiet.errors import LocalConfigError, QueueFullError, QueueShutdownError, UnknownPriorityError
from conquiet.flow import Signal
from conquiet.local.item import QueueItem
from conquiet.local.schedule import Bucket, Schedule
from conquiet.local.settings import QUEUE_SETTINGS, QueueSettings
from conquiet.local.waiters import Waiters
from conquiet.observe import LATENCY_BOUNDS, Latency, SafeLogger, watch_queue

__all__ = ["PriorityDelayQueue", "QueueSnapshot"]

_log = SafeLogger("conquiet.local")


class QueueSnapshot(TypedDict):
    depth: int
    ready: int
    scheduled: int
    shutdown: bool


# Entries of the ready heap: rank, seq, due time, item, and the rest of the bucket whose head the item is. The rank is the
# priority value; with ageing, the later an item became ready, the higher.
_Ready = tuple[float, int, float, QueueItem, Bucket | None]


class PriorityDelayQueue:
    """Serves the items whose delay is over by lowest priority value, then in order of arrival.

    Delays run on the clock's monotonic time, so setting the machine's clock does not affect them. A signal handler may call
    `shutdown`, `snapshot` and `depth`, and nothing else: it may have interrupted a change of the queue on its own thread.
    """

    def __init__(self, settings: QueueSettings = QUEUE_SETTINGS, clock: Clock = SYSTEM_CLOCK) -> None:
        given: object = settings
        if not isinstance(given, QueueSettings):
            raise LocalConfigError(f"settings must be a QueueSettings, not {type(given).__name__}")
        self.settings = settings
        self.clock = clock
        # Used by every call, so kept where access is fastest: a plain dict, bound methods, plain numbers.
        self._priorities = dict(settings.priorities)
        self._time, self._monotonic = clock.time, clock.monotonic
        self._max_in_memory, self._warn_depth = settings.max_in_memory, settings.warn_depth
        self._ageing = settings.ageing_seconds
        # Reentrant: a signal handler may call `shutdown` or `snapshot` on a thread that holds the lock.
        self._lock = threading.RLock()
        self._ready: list[_Ready] = []
        self._size = 0  # of everything: promotion changes only the size of the schedule
        self._schedule = Schedule()
        self._waiters = Waiters()
        self._seq = count()
        self._shutdown = False
        self._latency = Latency()
        watch_queue(self, self._latency)

    def enqueue(self, job: Any, priority: str = "normal", delay_seconds: float = 0.0) -> QueueItem:
        """Accept `job`, to be served after `delay_seconds`; 0 or less means no delay."""
        try:
            value = self._priorities[priority]
        except (KeyError, TypeError):
            raise UnknownPriorityError(
                f"there is no priority {priority!r}: use one of {', '.join(self._priorities)}, or add it to "
                "QueueSettings.priorities; nothing was enqueued"
            ) from None
        if delay_seconds != 0.0:  # None and other values that are false are checked, too
            delay_seconds = checked_seconds(
                "delay_seconds", delay_seconds, or_negative=True, error=LocalConfigError
            )
        with self._lock:
            if self._shutdown:
                raise QueueShutdownError(
                    "the queue is shut down and takes no more items; nothing was enqueued. Enqueue before "
                    "shutdown(), or make a new PriorityDelayQueue"
                )
            depth = self._size
            if depth >= self._max_in_memory:
                raise QueueFullError(
                    f"the queue holds {depth} items, as many as max_in_memory allows; nothing was enqueued. Try "
                    "again later, add workers, or raise QueueSettings.max_in_memory",
                    depth,
                )
            wall, due = self._time(), self._monotonic()
            enqueued_at = ready_at = utc(wall)
            if delay_seconds:
                ready_at = utc(wall + delay_seconds)
                due += delay_seconds
            # Equivalent to QueueItem(...), in half the time.
            seq = next(self._seq)
            item = tuple.__new__(QueueItem, (job, priority, value, enqueued_at, ready_at, seq))
            if delay_seconds > 0:
                self._schedule_item(due, item)
            else:
                rank = value if self._ageing is None else value + due / self._ageing
                heappush(self._ready, (rank, seq, due, item, None))
                self._size += 1
                if self._waiters:
                    self._waiters.notify()
        if depth + 1 == self._warn_depth:  # depth grows by one, so this is true once per crossing
            self._warn(depth + 1)
        return item

    def dequeue(
        self, block: bool = True, timeout: float | None = None, *, stop: Signal | None = None
    ) -> QueueItem | None:
        """Return the next item. With `block`, wait for it at most `timeout` seconds, or until `stop` is set.

        Return None if nothing arrived in that time, or if the queue is shut down and empty.
        """
        if timeout is not None:
            timeout = checked_seconds("timeout", timeout, or_negative=True, error=LocalConfigError)
        with self._lock:
            now = self._monotonic()
            item = self._take(now)
        if item is not None or not block:
            return item
        return self._wait(None if timeout is None else now + timeout, stop)

    def put_back(self, item: QueueItem) -> None:
        """Return an item that was taken but not started to its old place, even if the queue is full or shut down."""
        with self._lock:
            now = self._monotonic()
            waited = max(0.0, self._time() - item.ready_at.timestamp())
            rank = self._rank(item.priority_value, now - waited)
            heappush(self._ready, (rank, item.seq, now, item, None))
            self._size += 1
            depth = self._size
            if self._waiters:
                self._waiters.notify()
        if depth == self._warn_depth:
            self._warn(depth)

    def snapshot(self) -> QueueSnapshot:
        """Return counts of the items; an item whose delay is over counts as ready.

        In a signal handler that interrupts a change of the queue, it may still count as scheduled.
        """
        # If this thread holds the lock already, a signal handler is asking, and the queue is amid a change: only look.
        is_amid_change = self._lock._is_owned()  # type: ignore[attr-defined]
        with self._lock:
            if not is_amid_change:
                self._promote(self._monotonic())
            depth = self._size
            scheduled = min(self._schedule.size, depth)
            return {
                "depth": depth,
                "ready": depth - scheduled,
                "scheduled": scheduled,
                "shutdown": self._shutdown,
            }

    @property
    def depth(self) -> int:
        return self._size

    def items(self) -> list[QueueItem]:
        """Return a copy of all items, ready and delayed, in no particular order; for inspection."""
        with self._lock:
            found = []
            for _, _, _, item, rest in self._ready:
                found.append(item)
                if rest is not None:
                    found += rest.items
            for bucket in self._schedule.buckets():
                found += bucket.items
            return found

    def purge(self) -> int:
        """Discard all items, for use between tests, and return their number."""
        with self._lock:
            gone = self._ready, self._schedule
            self._ready, self._schedule, removed = [], Schedule(), self._size
            self._size = 0
            self._waiters.notify_all()
        del gone  # outside the lock: freeing millions of items takes a while
        return removed

    def shutdown(self) -> None:
        """Accept no more items. Accepted items are still served, delayed ones when they are due."""
        with self._lock:
            self._shutdown = True
            self._waiters.notify_all()

    def _schedule_item(self, due: float, item: QueueItem) -> None:
        earlier = due < self._schedule.next_due
        self._schedule.add(item.priority_value, due, item)
        self._size += 1
        if earlier and self._waiters:
            self._waiters.notify_earlier()

    def _promote(self, now: float) -> None:
        """Make due items ready. A bucket becomes one entry of the heap, sorted by its head."""
        if self._schedule.next_due > now:
            return
        for value, bucket in self._schedule.take_due(now):
            if self._ageing is not None:
                bucket.sort()
            bucket.dues.reverse()  # its head is at the end now, where removing it is cheap
            bucket.items.reverse()
            head = bucket.items.pop()
            rest = bucket if bucket.items else None
            due = bucket.dues.pop()
            heappush(self._ready, (self._rank(value, due), head.seq, due, head, rest))

    def _take(self, now: float) -> QueueItem | None:
        if self._schedule.next_due <= now:
            self._promote(now)
        if not self._ready:
            return None
        rank, _, due, item, bucket = self._ready[0]
        if bucket is None:
            heappop(self._ready)
        else:
            head = bucket.items.pop()
            rest = bucket if bucket.items else None
            next_due = bucket.dues.pop()
            if self._ageing is not None:
                rank = head.priority_value + next_due / self._ageing
            heapreplace(self._ready, (rank, head.seq, next_due, head, rest))
        self._size -= 1
        latency = self._latency
        latency.counts[bisect_left(LATENCY_BOUNDS, now - due)] += 1
        latency.total += now - due
        return item

    def _rank(self, value: int, due: float) -> float:
        """Return what ready items are sorted by. With ageing it must not change with time: a heap is not sorted again.

        So an item does not gain while it waits. Those that become ready later begin with a higher rank.
        """
        return value if self._ageing is None else value + due / self._ageing

    def _wait(self, deadline: float | None, stop: Signal | None) -> QueueItem | None:
        parker = Parker()
        if stop is not None:
            stop.add_waker(parker.wake)
        try:
            while True:
                with self._lock:
                    self._waiters.remove(parker)
                    now = self._monotonic()
                    item = self._take(now)
                    if item is not None:
                        return item
                    # Added before looking: a `shutdown` by a signal handler on this thread is then seen, or wakes it.
                    keeps_time = self._waiters.add(parker, timed=self._schedule.size > 0)
                    if self._is_over(now, deadline, stop):
                        return None
                    until = deadline
                    if keeps_time:
                        due = self._schedule.next_due
                        until = due if deadline is None else min(due, deadline)
                self.clock.wait(parker, None if until is None else until - now)
        finally:
            if stop is not None:
                stop.remove_waker(parker.wake)
            with self._lock:
                self._waiters.remove(parker)
                self._hand_on()

    def _is_over(self, now: float, deadline: float | None, stop: Signal | None) -> bool:
        return (
            (self._shutdown and not self._schedule.size)
            or (deadline is not None and now >= deadline)
            or (stop is not None and stop.is_set())
        )

    def _hand_on(self) -> None:
        if self._shutdown and not self._size:
            self._waiters.notify_all()  # the last item is gone: release all waiting threads
        else:
            self._waiters.hand_on(ready=bool(self._ready), scheduled=self._schedule.size > 0)

    def _warn(self, depth: int) -> None:
        _log.warning(
            "the queue holds %d items (warn_depth): its workers are slower than its producers; at %d it refuses",
            depth,
            self.settings.max_in_memory,
            extra={
                "event": "queue_backlog",
                "depth": depth,
                "max_in_memory": self.settings.max_in_memory,
            },
        )
