"""A store with a witness: what it does is recorded where it happens, before an answer can get lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from conquiet.flow import Flow, Signal
from conquiet.jobs import JobState
from conquiet.jobs.backends.protocol import Claim, Inserted, JobRow, Listing, NewRow, Settlement
from tests.simulation.witness import Witness, name_of_end


class WitnessedBackend:
    """The real back end, with a witness that records its steps."""

    def __init__(self, inner: Any, witness: Witness, *, expiries: bool, calm: bool) -> None:
        self._inner = inner
        self._witness = witness
        self._expiries = expiries  # whether a job may fail by losing its lease too often
        self._calm = calm  # no faults: a waiting process must be notified immediately
        self.capabilities = inner.capabilities
        self._joined: dict[int, Settlement] = {}  # acks in transactions that are not committed yet

    def watching(self, now: bool) -> None:
        """Called before and after the witness itself asks the store."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def for_worker(self) -> WitnessedBackend:
        return self

    def insert(
        self, queue: str, rows: Sequence[NewRow], skip: bool, connection: Any, notify: bool = True
    ) -> Flow[Inserted]:
        inserted: Inserted = yield from self._inner.insert(queue, rows, skip, connection, notify)
        self._witness.stored(queue, rows, inserted)
        return inserted

    def claim(self, claim: Claim) -> Flow[tuple[list[JobRow], bool]]:
        witness = self._witness
        op = witness.new_op()
        witness.write("invoke", "claim", op, holder=claim.worker)
        if self._expiries:
            before = yield from self._failed()
        rows, more = yield from self._inner.claim(claim)
        if self._expiries:
            for job_id in sorted((yield from self._failed()) - before):
                self._bury(job_id, claim.max_lease_expiries)
        witness.claimed(op, claim, rows, more)
        return rows, more

    def _failed(self) -> Flow[set[str]]:
        self.watching(True)
        rows = yield from self._inner.select(Listing(state=JobState.FAILED, limit=1_000))
        self.watching(False)
        return {row.id for _, row in rows}

    def _bury(self, job_id: str, bound: int) -> None:
        witness = self._witness
        op = witness.new_op()
        witness.write("invoke", "bury", op, witness.story(job_id))
        witness.write("ok", "bury", op, witness.story(job_id))
        known = witness.known.get(job_id)
        if known is not None:
            witness.finish(known)
            if known.lapses + 1 < bound:
                message = f"given up after {known.lapses + 1} leases, where {bound} may lapse"
                witness.broken("expired-early", job_id, message)

    def settle(
        self, settlements: Sequence[Settlement], connection: Any, begins: Sequence[tuple[str, str]] = ()
    ) -> Flow[set[str]]:
        if connection is not None:
            return (yield from self._settle_in(connection, settlements))
        witness = self._witness
        begun = [(witness.new_op(), end) for end in settlements]
        for op, end in begun:
            story = witness.story(end.job_id, end.token)
            witness.write("invoke", name_of_end(end), op, story, witness.name_of(end.token))
        current: set[str] = yield from self._inner.settle(settlements, connection, begins)
        witness.began(job_id for job_id, token in begins if token in current)
        for op, end in begun:
            witness.settled(op, end, end.token in current)
        return current

    def _settle_in(self, connection: Any, settlements: Sequence[Settlement]) -> Flow[set[str]]:
        current: set[str] = yield from self._inner.settle(settlements, connection)
        for end in settlements:
            if end.token in current:
                self._joined[id(connection)] = end
        return current

    def commit(self, connection: Any) -> Flow[None]:
        end = self._joined.pop(id(connection), None)
        yield from self._inner.commit(connection)
        if end is not None:
            self._witness.committed(end)

    def roll_back(self, connection: Any) -> Flow[None]:
        self._joined.pop(id(connection), None)
        yield from self._inner.roll_back(connection)

    def heartbeat(self, leases: Sequence[tuple[str, str]]) -> Flow[dict[str, float]]:
        witness = self._witness
        begun = [(witness.new_op(), job_id, token) for job_id, token in leases]
        for op, job_id, token in begun:
            witness.write("invoke", "heartbeat", op, witness.story(job_id, token), witness.name_of(token))
        extended: dict[str, float] = yield from self._inner.heartbeat(leases)
        for op, job_id, token in begun:
            witness.kept(op, job_id, token, extended.get(token))
        return extended

    def wait_for_work(self, queues: Sequence[str], seconds: float, stop: Signal) -> Flow[None]:
        since = self._witness.now()
        yield from self._inner.wait_for_work(queues, seconds, stop)
        if self._calm:
            self._witness.waited(queues, since)

    def retry(self, job_id: str) -> Flow[bool]:
        done: bool = yield from self._inner.retry(job_id)
        if done:
            self._witness.retried(job_id)
        return done

    def discard(self, job_id: str) -> Flow[bool]:
        done: bool = yield from self._inner.discard(job_id)
        if done:
            self._witness.discarded(job_id)
        return done
