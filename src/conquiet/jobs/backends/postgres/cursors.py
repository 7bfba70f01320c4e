"""Where a worker goes on claiming when every claim from the beginning has become slow.

While a transaction holds an old snapshot (a backup, a report, a forgotten session), PostgreSQL cannot remove the rows that
later transactions replace. The index of ready jobs then begins with a dead entry for every job claimed since, that of
leases with one for every job that has ended, and a claim reads them all. Workers therefore claim from where they were, and
only now and then from the beginning. Cursors are only a shortcut: a job behind one (given back, lapsed, due, or enqueued in a
transaction that committed late) is found by the next claim from the beginning.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

__all__ = ["ClaimCursors"]

_COMPARED = 5  # claims of each kind; the fastest counts, because a busy machine makes any of them slow
_GAIN = 0.75  # claims go on from the cursors while that takes at most this part of the time
_WITHOUT_GAIN = 5.0  # seconds until it is tried again, where it is not so
_SHARE = 20  # claims from the beginning take at most one part in so many of the time
_LONGEST_PAUSE = 5.0
_FIRST, _LAST = -(2**31), 2**31 - 1  # the levels of priority


class ClaimCursors:
    """The last job claimed in each queue, at each level of priority, and when to begin again."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._cursors: dict[str, dict[int, int]] = {}
        self._beginning: deque[float] = deque(maxlen=_COMPARED)  # seconds that the last claims took
        self._onward: deque[float] = deque(maxlen=_COMPARED)
        self._pause_until = self._futile_until = 0.0

    def now(self) -> float:
        return self._monotonic()

    def go_on(self) -> bool:
        """Return whether the next claim goes on from the cursors."""
        return self._futile_until <= self.now() < self._pause_until

    def ranges(self, queues: Sequence[str]) -> dict[str, Any]:
        """Return what lies after the cursors, as parameters of `claim_onward`.

        Each level of priority begins after its cursor. Levels without one are read from their beginning, so that a job of
        a better priority is not late.
        """
        found = []
        for lane, queue in enumerate(queues, 1):
            levels = sorted(self._cursors.get(queue, {}).items())
            begins = [(_FIRST, 0), *levels]
            ends = [*(level - 1 for level, _ in levels), _LAST]
            found += [(lane, queue, level, seq, end) for (level, seq), end in zip(begins, ends, strict=True)]
        names = ("lanes", "names", "levels", "seqs", "ends")
        return dict(zip(names, map(list, zip(*found, strict=True)), strict=True))

    def began_again(self, begun: float) -> bool:
        """Note a claim from the beginning, and when it began. Return whether the next one may go on: then call `move`."""
        now = self.now()
        self._beginning.append(now - begun)
        self._cursors.clear()
        if len(self._beginning) < _COMPARED or now < self._futile_until:
            return False
        self._pause_until = now + min(_SHARE * min(self._beginning), _LONGEST_PAUSE)
        return True

    def went_on(self, begun: float) -> None:
        """Note a claim from the cursors, and when it began."""
        now = self.now()
        self._onward.append(now - begun)
        if len(self._onward) == _COMPARED and min(self._onward) > _GAIN * min(self._beginning):
            self._futile_until = now + _WITHOUT_GAIN
            self._onward.clear()

    def move(self, claimed: Iterable[tuple[str, int, int]]) -> None:
        """Set the cursors behind claimed jobs, given as queue, priority and number."""
        for queue, priority, seq in claimed:
            levels = self._cursors.setdefault(queue, {})
            levels[priority] = max(seq, levels.get(priority, 0))
