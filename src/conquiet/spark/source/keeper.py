"""Holds the blocks of a source on the driver: claims them, refreshes them, and settles them after their commit.

A background thread settles committed blocks, claims the next batch while the current one runs, and resets idle times,
so that no other consumer claims the blocks of a long batch as abandoned, and renews the lease of the query. Each step of the thread is one call to Redis;
between steps the query's own calls take precedence.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from conquiet.errors import QueueConnectionError, QueueError
from conquiet.spark.source.blocks import Block, entries_in, take
from conquiet.spark.source.ledger import Ledger

__all__ = ["Keeper"]

_log = logging.getLogger("conquiet.spark")

# The target for the bytes of one claim: Redis copies all of them.
_BLOCK_BYTES = 4 * 1024 * 1024
_FIRST_ENTRIES = 50  # before the size of the entries is known
_JOIN_SECONDS = 5.0


class Keeper:
    """Holds the blocks of one query, oldest first. The query calls its methods from a single thread."""

    def __init__(self, ledger: Ledger, *, block_entries: int, ahead: int, heartbeat: float) -> None:
        self._ledger = ledger
        self._block_entries = block_entries
        self._next_entries = min(block_entries, _FIRST_ENTRIES)
        self._ahead = ahead
        self._heartbeat = heartbeat
        self._held: deque[Block] = deque(ledger.open())
        self._committed: deque[Block] = deque()  # no longer in _held, to be settled
        self._running = 0  # number of leading blocks that belong to the running batch
        self._claiming = False  # whether the thread should claim ahead
        self._bound = ""
        self._first: tuple[Block, ...] | None = None  # the blocks of the query's first batch, as far as known
        self._refreshed = self._renewed = time.monotonic()
        self._to_refresh: deque[Block] = deque()
        self._failure: Exception | None = None
        self._io = threading.Lock()
        self._changed = threading.Condition()
        self._in_front = False  # the query has its turn or waits for it
        self._closed = False
        self._thread = threading.Thread(target=self._keep, name="conquiet-keeper", daemon=True)
        self._thread.start()

    def commit(self, blocks: Sequence[Block]) -> None:
        """Mark these blocks, and all claimed before them, as durably committed."""
        self._check()
        with self._turn():
            if not blocks or blocks[-1] not in self._held:
                return  # already settled
            block = None
            while block != blocks[-1]:
                block = self._held.popleft()
                self._committed.append(block)
            self._running = 0

    def next_batch(self, limit: int, bound: str) -> list[Block]:
        """Return the next blocks, with at most `limit` entries in total and none after the id `bound`."""
        self._check()
        with self._turn():
            return self._filled(limit, bound)

    def first_batch(self, limit: int, bound: str) -> tuple[Block, ...]:
        """Return the blocks of the query's first batch. They are claimed and recorded once, and the same ever after."""
        self._check()
        with self._turn():
            first = self._recorded_first()
            if first is None:
                first = self._first = self._ledger.record_first(self._filled(limit, bound))
            return first

    def commit_first(self) -> None:
        """Mark the first batch as durably committed."""
        self._check()
        with self._turn():
            first = self._recorded_first()
        self.commit(first or ())

    def run(self, blocks: Sequence[Block], bound: str) -> None:
        """Mark the batch of these blocks as running, and claim the next one meanwhile, with no entry after `bound`."""
        self._check()
        with self._turn():
            self._bound = bound
            self._running = sum(block in blocks for block in self._held)
            self._claiming = self._ahead > 0

    def settle(self) -> None:
        """Settle all committed blocks before returning."""
        self._check()
        with self._turn():
            while self._committed:
                self._settle_one()

    def lost(self) -> int:
        with self._turn():
            return self._ledger.lost()

    def last_id(self) -> str:
        with self._turn():
            return self._ledger.last_id()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(_JOIN_SECONDS)
        if self._thread.is_alive():
            return  # Redis does not answer; the lease lapses by itself
        try:
            self._ledger.release()
        except QueueError as error:
            _log.warning("%s; the next run has to wait for the lease to lapse", error)

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Hold the connection for the query; the thread finishes its step and waits."""
        with self._changed:
            self._in_front = True
        try:
            with self._io:
                yield
        finally:
            with self._changed:
                self._in_front = False
                self._changed.notify_all()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _keep(self) -> None:
        while True:
            with self._changed:
                while self._in_front or not (self._closed or self._work()):
                    due = min(self._refresh_due(), self._renewal_due())
                    self._changed.wait(max(0.01, due - time.monotonic()))
                if self._closed:
                    return
            try:
                with self._io:
                    self._step()
            except QueueConnectionError as error:
                if self._failure is not None:
                    return
                # Refreshing or settling a block twice does no harm, and a missed heartbeat must not fail the query.
                _log.warning("%s; trying again shortly", error)
                self._pause()
            except Exception as error:  # noqa: BLE001 - raised in the query's thread at its next call
                self._failure = error
                return

    def _work(self) -> bool:
        due = time.monotonic() >= min(self._refresh_due(), self._renewal_due())
        return bool(due or self._to_refresh or self._committed or self._claiming)

    def _step(self) -> None:
        now = time.monotonic()
        if now >= self._renewal_due():
            self._ledger.renew()
            self._renewed = now
            return
        if now >= self._refresh_due():
            self._refreshed = now
            self._to_refresh = deque([*self._committed, *self._held])
        if self._to_refresh:
            # Cheap for entries that are fresh, and a block that was settled meanwhile has no pending entries.
            self._ledger.refresh(self._to_refresh.popleft(), int(self._heartbeat * 500))
        elif self._committed:
            self._settle_one()
        elif self._claiming:
            room = self._ahead - entries_in(self._held) + entries_in(list(self._held)[: self._running])
            self._claiming = room > 0 and self._claim(room)

    def _pause(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._closed, min(self._heartbeat, 1.0))

    def _refresh_due(self) -> float:
        return self._refreshed + self._heartbeat

    def _renewal_due(self) -> float:
        return self._renewed + self._ledger.lease_seconds / 3

    def _recorded_first(self) -> tuple[Block, ...] | None:
        if self._first is None:
            self._first = self._ledger.first()
        return self._first

    def _filled(self, limit: int, bound: str) -> list[Block]:
        """Return the next blocks; claim what is missing."""
        self._claiming = False
        self._bound = bound
        while entries_in(self._held) < limit and self._claim(limit - entries_in(self._held)):
            pass
        return take(self._held, limit)

    def _settle_one(self) -> None:
        self._ledger.settle(self._committed[0])
        self._committed.popleft()

    def _claim(self, room: int) -> bool:
        """Claim one more block. Return False if there was nothing to claim."""
        try:
            claim = self._ledger.claim(min(room, self._next_entries), self._bound)
        except QueueConnectionError as error:
            # Only the ledger knows whether the block was claimed. The next run reads it; this one must end.
            self._failure = error
            raise
        if claim is None:
            return False
        self._held.append(claim.block)
        size = max(1, claim.bytes // claim.block.count)
        self._next_entries = max(1, min(self._block_entries, _BLOCK_BYTES // size))
        return True
