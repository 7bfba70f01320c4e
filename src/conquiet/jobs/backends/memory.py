"""The memory store, for tests. Everything is lost when the process ends."""

from __future__ import annotations

import heapq
import threading
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from conquiet.clock import SYSTEM_CLOCK, Clock, on_grid
from conquiet.errors import JobConfigError
from conquiet.flow import Flow, Signal, Sleep
from conquiet.jobs.backends.protocol import PRUNE_STEP, Claim, Inserted, JobRow, Listing, NewRow, Settlement
from conquiet.jobs.backends.registry import names_no_store
from conquiet.jobs.backends.rows import (
    EXPIRED_ERROR,
    attempt_json,
    duplicate_error,
    duplicates,
    is_listed,
    new_row,
)
from conquiet.jobs.backends.wakeups import Wakeups
from conquiet.jobs.model import JobState, QueueStats, StoreCapabilities

__all__ = ["MemoryBackend", "open_memory"]

READY, IN_FLIGHT, FAILED, SUCCEEDED = (state.value for state in JobState)


def open_memory(dsn: str, /, *, clock: Clock | None, awaits: bool) -> MemoryBackend:
    if dsn != "memory://":
        raise names_no_store(dsn)
    return MemoryBackend(clock or SYSTEM_CLOCK)


class _Entry:
    """A job in memory. `row` is replaced at each transition, never modified."""

    __slots__ = ("row", "seq")

    def __init__(self, seq: int, row: JobRow) -> None:
        self.seq = seq
        self.row = row


class MemoryBackend:
    capabilities = StoreCapabilities(
        "memory", durable=False, own_clock=False, joins_transactions=False, shared=False
    )

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._jobs: dict[str, _Entry] = {}
        self._seq = 0
        # Jobs claimable now, by (priority, seq), and later, by time. Outdated entries are dropped when reached.
        self._ready: dict[str, list[tuple[int, int, str]]] = {}
        self._later: list[tuple[float, str]] = []
        self._wakeups = Wakeups()

    def _now(self) -> float:
        return on_grid(self._clock.time())

    def open(self, migrate: str) -> Flow[None]:
        yield from ()

    def migrate(self, target: int | None) -> Flow[list[str]]:
        yield from ()
        return []

    def plan(self, target: int | None) -> Flow[list[tuple[str, str]]]:
        yield from ()
        return []

    def insert(
        self, queue: str, rows: Sequence[NewRow], skip: bool, connection: Any, notify: bool = True
    ) -> Flow[Inserted]:
        yield from ()
        if connection is not None:
            raise JobConfigError(
                "the memory store has no transactions: connection= needs SQLite or PostgreSQL"
            )
        with self._lock:
            now = self._now()
            double = duplicates((row.id for row in rows), self._jobs)
            if double and not skip:
                raise duplicate_error(double)
            added = []
            for row in rows:
                if row.id in self._jobs:
                    continue
                self._seq += 1
                self._jobs[row.id] = _Entry(self._seq, new_row(queue, row, now))
                self._offer(row.id, now)
                added.append(row.id)
        if notify:
            self._wakeups.wake_all()
        return Inserted(now, added)

    def claim(self, claim: Claim) -> Flow[tuple[list[JobRow], bool]]:
        yield from ()
        with self._lock:
            now = self._now()
            self._promote(now)
            rows: list[JobRow] = []
            failed = False
            for entry in islice(self._next(claim.queues, now), claim.limit):
                if self._expire(entry, claim, now):
                    failed = True
                    continue
                begins = claim.begun is None or (len(rows) < claim.begun and not entry.row.lease_expiries)
                rows.append(self._lease(entry, claim, now, begins))
            return rows, failed

    def set_aside(self, job_id: Any, token: str, reason: str) -> Flow[None]:
        end = Settlement(job_id, token, JobState.FAILED, "failed", error=reason, error_type="DamagedRow")
        yield from self.settle([end], None)

    def set_aside_next(self, queues: Sequence[str], reason: str) -> Flow[bool]:
        yield from ()
        return False  # its claims never fail

    def settle(
        self, settlements: Sequence[Settlement], connection: Any, begins: Sequence[tuple[str, str]] = ()
    ) -> Flow[set[str]]:
        yield from ()
        if connection is not None:
            raise JobConfigError(
                "the memory store has no transactions: connection= needs SQLite or PostgreSQL"
            )
        with self._lock:
            now = self._now()
            current = set()
            for settlement in settlements:
                entry = self._held(settlement.job_id, settlement.token, now)
                if entry is not None:
                    self._end(entry, settlement, now)
                    current.add(settlement.token)
            for job_id, token in begins:
                if (entry := self._held(job_id, token, now)) is not None:
                    entry.row = entry.row._replace(lease_begun=True)
                    current.add(token)
            self._wakeups.wake_all()
            return current

    def heartbeat(self, leases: Sequence[tuple[str, str]]) -> Flow[dict[str, float]]:
        yield from ()
        with self._lock:
            now = self._now()
            extended: dict[str, float] = {}
            for job_id, token in leases:
                entry = self._held(job_id, token, now)
                if entry is not None:
                    row = entry.row
                    until = max(row.lease_expires_at or 0.0, on_grid(now + (row.lease_ttl or 0.0)))
                    entry.row = row._replace(
                        lease_expires_at=until
                    )  # its entry in `_later` is updated when it is reached
                    extended[token] = until
            return extended

    def get(self, job_id: str) -> Flow[JobRow | None]:
        yield from ()
        with self._lock:
            entry = self._jobs.get(job_id)
            return None if entry is None else entry.row

    def select(self, listing: Listing) -> Flow[list[tuple[int, JobRow]]]:
        yield from ()
        with self._lock:
            now = self._now()
            rows = [
                (entry.seq, entry.row)
                for entry in self._jobs.values()
                if is_listed(entry.seq, entry.row, listing, now)
            ]
        return (rows[::-1] if listing.newest_first else rows)[: listing.limit]

    def stats(self, queue: str | None) -> Flow[list[QueueStats]]:
        yield from ()
        counts: dict[str, dict[str, int]] = {}
        with self._lock:
            now = self._now()
            for entry in self._jobs.values():
                row = entry.row
                if queue is None or row.queue == queue:
                    kind = _kind(row, now)
                    of_queue = counts.setdefault(row.queue, {})
                    of_queue[kind] = of_queue.get(kind, 0) + 1
        return [QueueStats(name, **of_queue) for name, of_queue in sorted(counts.items())]

    def backlog(self, queue: str, limit: int) -> Flow[int]:
        yield from ()
        with self._lock:
            rows, now = (entry.row for entry in self._jobs.values()), self._now()
            return sum(islice((1 for row in rows if row.queue == queue and _claimable(row, now)), limit))

    def retry(self, job_id: str) -> Flow[bool]:
        yield from ()
        with self._lock:
            entry = self._jobs.get(job_id)
            if entry is None or entry.row.state != FAILED:
                return False
            entry.row = entry.row._replace(state=READY, retries=0, retry_at=None, lease_expiries=0)
            self._offer(job_id, self._now())
        self._wakeups.wake_all()
        return True

    def discard(self, job_id: str) -> Flow[bool]:
        yield from ()
        with self._lock:
            entry = self._jobs.get(job_id)
            if entry is None or entry.row.state not in (READY, FAILED):
                return False
            del self._jobs[job_id]
            return True

    def prune(self, older_than: float) -> Flow[int]:
        yield from ()
        with self._lock:
            limit = self._now() - older_than
            old = [
                job_id
                for job_id, entry in self._jobs.items()
                if entry.row.state in (SUCCEEDED, FAILED) and (entry.row.finished_at or 0.0) <= limit
            ][:PRUNE_STEP]
            for job_id in old:
                del self._jobs[job_id]
            return len(old)

    def next_due(self, queues: Sequence[str]) -> Flow[float | None]:
        yield from ()
        with self._lock:
            rows = [entry.row for entry in self._jobs.values() if entry.row.queue in queues]
            due = [row.retry_at or 0.0 for row in rows if row.state == READY]
            due += [row.lease_expires_at or 0.0 for row in rows if row.state == IN_FLIGHT]
            return max(min(due) - self._now(), 0.0) if due else None

    def wait_for_work(self, queues: Sequence[str], seconds: float, stop: Signal) -> Flow[None]:
        with self._wakeups.waiting() as woken:
            with self._lock:
                now = self._now()
                self._promote(now)
                if any(self._has_claimable(name, now) for name in queues):
                    return
                if self._later:
                    seconds = min(seconds, max(self._later[0][0] - now, 0.0))
            yield Sleep(seconds, woken, stop)

    def rest(self) -> Flow[None]:
        yield from ()

    def _promote(self, now: float) -> None:
        while self._later and self._later[0][0] <= now:
            self._offer(heapq.heappop(self._later)[1], now)

    def _has_claimable(self, queue: str, now: float) -> bool:
        heap = self._ready.get(queue, [])
        while heap:
            entry = self._jobs.get(heap[0][2])
            if entry is not None and entry.seq == heap[0][1] and _claimable(entry.row, now):
                return True
            heapq.heappop(heap)
        return False

    def begin(self) -> Flow[Any]:
        yield from ()
        raise JobConfigError("the memory store has no transactions")

    def commit(self, connection: Any) -> Flow[None]:
        yield from ()

    def roll_back(self, connection: Any) -> Flow[None]:
        yield from ()

    def awaiting(self) -> MemoryBackend:
        return self  # it never waits

    def for_worker(self) -> MemoryBackend:
        return self

    def close(self) -> Flow[None]:
        yield from ()

    def _offer(self, job_id: str, now: float) -> None:
        """Put a job on the heap where the next claim finds it."""
        entry = self._jobs.get(job_id)
        if entry is None:
            return
        row = entry.row
        at = row.lease_expires_at if row.state == IN_FLIGHT else row.retry_at
        if row.state not in (READY, IN_FLIGHT):
            return
        if at is not None and at > now:
            heapq.heappush(self._later, (at, job_id))
        else:
            heapq.heappush(self._ready.setdefault(row.queue, []), (row.priority, entry.seq, job_id))

    def _next(self, queues: Sequence[str], now: float) -> Iterator[_Entry]:
        """Yield the claimable jobs of these queues in claim order (see `by_turns`), and remove each from its heap."""
        turns: Counter[tuple[str, int]] = Counter()

        def place(name: str) -> tuple[int, int]:
            priority = self._ready[name][0][0]
            return priority, turns[name, priority]

        while names := [name for name in queues if self._ready.get(name)]:
            name = min(names, key=place)  # of equal ones the first
            priority, seq, job_id = heapq.heappop(self._ready[name])
            entry = self._jobs.get(job_id)
            if entry is None or entry.seq != seq:
                continue
            if _claimable(entry.row, now):
                turns[name, priority] += 1
                yield entry
            else:  # leased meanwhile, or the clock was set back: keep it for later
                self._offer(job_id, now)

    def _expire(self, entry: _Entry, claim: Claim, now: float) -> bool:
        """Record that a lease has lapsed. Return True if the job is Failed now, because that happened too often."""
        row = entry.row
        if row.state != IN_FLIGHT:
            return False
        times = row.lease_expiries + bool(row.lease_begun)
        if row.lease_begun and times >= claim.max_lease_expiries:
            error = EXPIRED_ERROR % times
            ended = Settlement(
                row.id, "", JobState.FAILED, "lease expired", error=error, error_type="LeaseExpired"
            )
        else:
            ended = Settlement(row.id, "", JobState.READY, "lease expired")
        self._end(entry, ended, row.lease_expires_at or now)
        entry.row = entry.row._replace(lease_expiries=times)
        if entry.row.state == FAILED:
            entry.row = entry.row._replace(finished_at=now)
            return True
        entry.row = entry.row._replace(retry_at=row.retry_at)
        return False

    def _lease(self, entry: _Entry, claim: Claim, now: float, begins: bool) -> JobRow:
        until = on_grid(now + claim.ttl)
        row = entry.row = entry.row._replace(
            state=IN_FLIGHT,
            lease_token=str(uuid.uuid4()),
            lease_version=entry.row.lease_version + 1,
            lease_expires_at=until,
            lease_ttl=claim.ttl,
            lease_worker=claim.worker,
            lease_started_at=now,
            lease_begun=begins,
        )
        heapq.heappush(self._later, (until, row.id))
        return row

    def _held(self, job_id: str, token: str, now: float) -> _Entry | None:
        """Return the job if the lease with this token is current and has not expired."""
        entry = self._jobs.get(job_id)
        if entry is None or entry.row.state != IN_FLIGHT or entry.row.lease_token != token:
            return None
        return entry if (entry.row.lease_expires_at or 0.0) > now else None

    def _end(self, entry: _Entry, end: Settlement, now: float) -> None:
        row = entry.row
        history = row.attempts
        if end.state is not JobState.SUCCEEDED and end.outcome != "unbegun":
            attempt = attempt_json(
                row.lease_version, row.lease_worker or "", row.lease_started_at or 0.0, now, end
            )
            history = f"[{attempt}]" if history == "[]" else f"{history[:-1]},{attempt}]"
        entry.row = row._replace(
            state=end.state.value,
            retries=row.retries + end.retry,
            retry_at=None if end.delay is None else on_grid(now + end.delay),
            lease_token=None,
            lease_expires_at=None,
            error=end.error if end.error is not None or end.outcome == "failed" else row.error,
            finished_at=None if end.state is JobState.READY else now,
            attempts=history,
        )
        if end.state is JobState.READY:
            self._offer(row.id, now)


def _claimable(row: JobRow, now: float) -> bool:
    if row.state == READY:
        return row.retry_at is None or row.retry_at <= now
    return row.state == IN_FLIGHT and (row.lease_expires_at or 0.0) <= now


def _kind(row: JobRow, now: float) -> str:
    if row.state == READY:
        return "ready" if _claimable(row, now) else "delayed"
    if row.state == IN_FLIGHT:
        return "expired" if _claimable(row, now) else "in_flight"
    return "failed" if row.state == FAILED else "succeeded"
