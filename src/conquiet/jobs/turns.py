"""Queues take turns: a worker of several queues does not finish one before it looks at the next."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from conquiet.jobs.model import Job

__all__ = ["Turns", "by_turns"]


class Turns:
    """The queues of a worker, in the order for its next claim."""

    def __init__(self, queues: Sequence[str]) -> None:
        self.queues = tuple(queues)

    def served(self, jobs: Sequence[Job]) -> None:
        """The next claim begins with the queue after the one that had the last of these jobs, in claim order."""
        if jobs and len(self.queues) > 1:
            following = self.queues.index(jobs[-1].queue) + 1
            self.queues = self.queues[following:] + self.queues[:following]


def by_turns(claimed: list[Any], queues: Sequence[str], queue: int, priority: int) -> list[Any]:
    """Sort the rows of a claim: best priority first; with the same priority the oldest of each queue, then the second …

    RETURNING does not keep the order. A row begins with its number; `queue` and `priority` are the places of these columns.
    A damaged priority that is not a number sorts last, as in SQLite.
    """

    def level(row: Any) -> float:
        return row[priority] if type(row[priority]) is int else math.inf

    claimed.sort(key=lambda row: (level(row), row[0]))
    if len(queues) == 1:
        return claimed
    turns: Counter[tuple[str, float]] = Counter()
    places = {}
    for row in claimed:
        turns[row[queue], level(row)] += 1
        places[row[0]] = level(row), turns[row[queue], level(row)], queues.index(row[queue])
    return sorted(claimed, key=lambda row: places[row[0]])
