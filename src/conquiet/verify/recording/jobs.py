"""A real job store with a recorder between worker and database, which writes every step to a history.

Holders are lease tokens; times are those of the store. The points in the life of a job, for tests that kill a process at
one of them:

    claimed      the store has leased jobs, and the worker does not know them yet
    handling     in the handler
    uncommitted  the handler has returned; its ack (or the transaction with it) has not been sent
    committing   in progress: up to a few milliseconds after it was sent
    committed    the store has committed it, and the worker does not know it yet
    nacking, releasing, beating     like committing: a nack, a release, a heartbeat is in progress
    idle         a claim returned no jobs

The transaction of a handler commits its effect and the ack in one step, so both are recorded after it. A process that is
killed in between leaves neither in the history; `add_unwritten` adds them at the end, from the state of the store.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any

from conquiet.errors import StoreOutcomeUnknownError, StoreUnavailableError
from conquiet.flow import Flow
from conquiet.jobs import Job, JobState, JobStore
from conquiet.jobs.backends import Claim, JobRow, Settlement
from conquiet.verify.history import Event, History, read_events
from conquiet.verify.history.event import Phase

__all__ = ["POINTS", "RecordedBackend", "add_unwritten", "record"]

# The points at which a job could be lost or repeated.
POINTS = (
    *("claimed", "handling", "uncommitted", "committing", "committed"),
    *("nacking", "releasing", "beating"),
)
Reached = Callable[[str], None]


def nowhere(point: str) -> None:
    """Do nothing at any point."""


class RecordedBackend:
    def __init__(self, inner: Any, history: History, reached: Reached = nowhere) -> None:
        self._inner = inner
        self._history = history
        self._reached = reached
        self._handling: dict[str, str] = {}  # the op of the handle, by token
        self._joined: dict[int, Settlement] = {}  # acks in transactions, by the id() of the connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def awaiting(self) -> RecordedBackend:
        return self._around(self._inner.awaiting())

    def for_worker(self) -> RecordedBackend:
        return self._around(self._inner.for_worker())

    def _around(self, inner: Any) -> RecordedBackend:
        twin = RecordedBackend(inner, self._history, self._reached)
        twin._handling, twin._joined = self._handling, self._joined
        return twin

    def claim(self, claim: Claim) -> Flow[tuple[list[JobRow], bool]]:
        op = self._history.record("invoke", "claim")
        rows, more = yield from self._inner.claim(claim)
        self._reached("claimed" if rows else "idle")
        at = [(_seconds(row.lease_expires_at) - claim.ttl, _seconds(row.lease_expires_at)) for row in rows]
        self._write(
            Event("ok", "claim", op, row.id, row.lease_token, row.lease_version, begun, until)
            for row, (begun, until) in zip(rows, at, strict=True)
        )
        if not rows:
            self._history.record("ok", "claim", op=op)
        return rows, more

    def settle(
        self, settlements: Sequence[Settlement], connection: Any, begins: Sequence[tuple[str, str]] = ()
    ) -> Flow[set[str]]:
        if connection is not None:
            (ack,) = settlements
            current: set[str] = yield from self._inner.settle(settlements, connection)
            if current:
                self._joined[id(connection)] = ack
            return current
        settled: set[str] = yield from self._recorded(
            _name, settlements, self._settle_plain(settlements, begins)
        )
        return settled

    def _settle_plain(
        self, settlements: Sequence[Settlement], begins: Sequence[tuple[str, str]]
    ) -> Flow[set[str]]:
        names = {_name(end) for end in settlements}
        if "ack" in names:
            self._reached("uncommitted")
            self._reached("committing")
        if names & {"nack", "bury"}:
            self._reached("nacking")
        if "release" in names:
            self._reached("releasing")
        current: set[str] = yield from self._inner.settle(settlements, None, begins)
        if "ack" in names:
            self._reached("committed")
        return current

    def heartbeat(self, leases: Sequence[tuple[str, str]]) -> Flow[dict[str, float]]:
        ends = [Settlement(job_id, token, JobState.IN_FLIGHT, "") for job_id, token in leases]
        self._reached("beating")
        beating = self._inner.heartbeat(leases)
        extended: dict[str, float] = yield from self._recorded(lambda end: "heartbeat", ends, beating)
        return extended

    def commit(self, connection: Any) -> Flow[None]:
        ack = self._joined.pop(id(connection), None)
        self._reached("uncommitted")
        self._reached("committing")
        try:
            yield from self._inner.commit(connection)
        except StoreOutcomeUnknownError:
            raise  # nothing is recorded: add_unwritten finds out at the end
        self._reached("committed")
        if ack is not None:
            handle = self._handling.pop(ack.token)
            op = self._history.new_op()
            self._write(
                [
                    Event("ok", "handle", handle, ack.job_id, ack.token),
                    Event("invoke", "ack", op, ack.job_id, ack.token),
                    Event("ok", "ack", op, ack.job_id, ack.token),
                ]
            )

    def begin_handling(self, job: Job) -> None:
        """Called by the handler at its start; a handler without a transaction also calls `end_handling`."""
        assert job.lease is not None
        token = job.lease.token
        self._handling[token] = self._history.record("invoke", "handle", job.id, holder=token)

    def end_handling(self, job: Job, phase: Phase = "ok") -> None:
        assert job.lease is not None
        token = job.lease.token
        self._history.record(phase, "handle", job.id, op=self._handling.pop(token), holder=token)

    def _recorded(
        self, name: Callable[[Settlement], str], ends: Sequence[Settlement], asking: Flow[Any]
    ) -> Flow[Any]:
        begun = [Event("invoke", name(end), self._history.new_op(), end.job_id, end.token) for end in ends]
        self._write(begun)
        phase: Phase = "unknown"
        why: str | None = None
        current: Any = ()
        try:
            current = yield from asking
            phase = "fail"
        except StoreUnavailableError as error:
            phase = "unknown" if isinstance(error, StoreOutcomeUnknownError) else "fail"
            why = type(error).__name__  # an event without a reason was refused by the store
            raise
        finally:
            until = current if isinstance(current, dict) else {}
            self._write(
                event._replace(
                    phase="ok" if event.holder in current else phase,
                    until=until.get(event.holder),
                    error=why,
                )
                for event in begun
            )
        return current

    def _write(self, events: Iterable[Event]) -> None:
        self._history.write([event._replace(pid=os.getpid()) for event in events])


def record(store: JobStore, history: History, reached: Reached = nowhere) -> RecordedBackend:
    """Record what is done with `store` from now on."""
    backend = RecordedBackend(store.operations.backend, history, reached)
    store.operations.backend = backend
    return backend


def add_unwritten(store: JobStore, history: History, ids: Iterable[str]) -> int:
    """Add successes that were not recorded because the process was killed or cut off in or right after the commit."""
    holders: dict[tuple[str, int], str] = {}
    acked: set[str] = set()
    for _, event in read_events(history.path):
        if event is None or event.phase != "ok" or event.id is None:
            continue
        if event.name == "claim":
            holders[event.id, event.version or 0] = event.holder or ""
        elif event.name == "ack":
            acked.add(event.id)
    added = 0
    for job in map(store.get, ids):
        assert job is not None
        if job.state is JobState.SUCCEEDED and job.id not in acked:
            holder = holders[job.id, job.attempts[-1].number]
            for name in ("handle", "ack"):
                op = history.record("invoke", name, job.id, holder=holder)
                history.record("ok", name, job.id, op=op, holder=holder)
            added += 1
    return added


def _name(end: Settlement) -> str:
    if end.state is JobState.SUCCEEDED:
        return "ack"
    if end.state is JobState.FAILED:
        return "bury"
    return "nack" if end.outcome == "failed" else "release"


def _seconds(time: Any) -> float:
    return float(time.timestamp() if isinstance(time, datetime) else time)
