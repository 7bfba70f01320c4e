"""Delayed items by due time, returned in the order in which they must be served.

An item that is due competes with all others that are due, by (priority, seq). With a heap by due time, every
one of them would have to be moved and sorted before the first can be served: a pause of seconds for a million items.
Here a thousand move in one step (docs/decisions/0007).
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator

from conquiet.local.item import QueueItem

__all__ = ["Bucket", "Schedule"]

FULL = 2_048  # items; a larger bucket is halved, unless all of it is due at the same instant


class Bucket:
    """Items of one priority that are due about the same time. `items` are in seq order, `dues` beside them."""

    __slots__ = ("dues", "end", "items")

    def __init__(self, dues: list[float], items: list[QueueItem], end: float) -> None:
        self.dues = dues
        self.items = items
        self.end = end  # the latest of `dues`

    def sort(self) -> None:
        """Order the items by due time; those due at the same instant stay in seq order."""
        order = sorted(range(len(self.dues)), key=self.dues.__getitem__)
        self.dues = [self.dues[index] for index in order]
        self.items = [self.items[index] for index in order]


class Schedule:
    """All delayed items. Not thread-safe: the queue's lock is held around every call."""

    def __init__(self) -> None:
        self._timelines: dict[int, Timeline] = {}
        self.next_due = math.inf
        self.size = 0

    def add(self, priority_value: int, due: float, item: QueueItem) -> None:
        """Add an item, which must have a higher seq than all items added before."""
        timeline = self._timelines.get(priority_value)
        if timeline is None:
            timeline = self._timelines[priority_value] = Timeline()
        timeline.add(due, item)
        self.size += 1
        if due < self.next_due:
            self.next_due = due

    def buckets(self) -> Iterator[Bucket]:
        for timeline in self._timelines.values():
            yield from timeline.buckets()

    def take_due(self, now: float) -> Iterator[tuple[int, Bucket]]:
        """Remove the items due by `now`, as buckets that contain only due items, with their priority."""
        for priority_value, timeline in self._timelines.items():
            for bucket in timeline.take_due(now):
                self.size -= len(bucket.items)
                yield priority_value, bucket
        self.next_due = min(timeline.next_due for timeline in self._timelines.values())


class Timeline:
    """The delayed items of one priority: buckets that follow each other in time.

    Two rules make it fast. Inside a bucket items stay in the order of arrival, which is seq order: a bucket that is due
    as a whole is already sorted. And buckets are halved only when necessary: when full, or when only a part is due.
    (A quicksort that sorts only as far as needed.)
    """

    __slots__ = ("_buckets", "_starts")

    def __init__(self) -> None:
        self._starts: list[float] = []  # the earliest due time of each bucket, ascending
        self._buckets: list[Bucket] = []

    @property
    def next_due(self) -> float:
        return self._starts[0] if self._starts else math.inf

    def buckets(self) -> list[Bucket]:
        return self._buckets

    def add(self, due: float, item: QueueItem) -> None:
        at = bisect_right(self._starts, due) - 1
        if at < 0 or (self._is_closed(at) and due != self._starts[at]):
            at += 1  # the item goes into the next bucket, which then begins earlier
            if at == len(self._buckets) or self._is_closed(at):
                self._starts.insert(at, due)
                self._buckets.insert(at, Bucket([due], [item], due))
                return
        bucket = self._buckets[at]
        bucket.dues.append(due)
        bucket.items.append(item)
        if due < self._starts[at]:
            self._starts[at] = due
        elif due > bucket.end:
            bucket.end = due
        if len(bucket.dues) > FULL and self._starts[at] != bucket.end:
            self._halve(at)

    def take_due(self, now: float) -> list[Bucket]:
        starts, buckets = self._starts, self._buckets
        count = 0
        while count < len(starts) and starts[count] <= now:
            if buckets[count].end <= now:
                count += 1
            else:
                self._halve(count)  # the part that is due gets smaller, until it is due as a whole
        taken = buckets[:count]
        del starts[:count], buckets[:count]
        return taken

    def _is_closed(self, at: int) -> bool:
        """Return whether bucket `at` accepts only items of its single due time.

        A large bucket that is due at one instant is never halved. Other items would have to be separated from it again,
        at a cost proportional to its size.
        """
        bucket = self._buckets[at]
        return self._starts[at] == bucket.end and len(bucket.dues) >= FULL // 2

    def _halve(self, at: int) -> None:
        """Split a bucket with more than one due time at its median due time."""
        bucket = self._buckets[at]
        dues = sorted(bucket.dues)
        cut = bisect_left(dues, dues[len(dues) // 2]) or bisect_right(dues, dues[0])
        pivot = dues[cut]
        early, late = Bucket([], [], dues[cut - 1]), Bucket([], [], bucket.end)
        for due, item in zip(bucket.dues, bucket.items, strict=True):
            part = early if due < pivot else late
            part.dues.append(due)
            part.items.append(item)
        self._buckets[at : at + 1] = early, late
        self._starts.insert(at + 1, pivot)
