"""Records every step that the store takes, whether or not a caller gets the answer (see `witnessed.py`).

`conquiet.verify.history` judges the recorded history. Two kinds of violations that a history does not show are
recorded here as they happen: a job claimed too early or before a better one, and a retry delay beyond its bound.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from conquiet.flow import Signal
from conquiet.jobs import Job, JobState, RetrySchedule
from conquiet.jobs.backends.protocol import Claim, Inserted, JobRow, NewRow, Settlement
from conquiet.testing import ManualClock
from conquiet.verify.history import Event, Violation
from conquiet.verify.history.event import Phase


class Known:
    """What the witness knows of a job: its place in the order, and when it may be claimed next."""

    __slots__ = (
        "claimable_at",
        "failures",
        "has_begun",
        "is_done",
        "is_held",
        "lapses",
        "max_retries",
        "place",
        "queue",
    )

    def __init__(self, queue: str, place: tuple[int, int], at: float, max_retries: int) -> None:
        self.queue = queue
        self.place = place
        self.claimable_at = at  # inf once it is finished
        self.max_retries = max_retries
        self.failures = 0
        self.is_held = self.is_done = self.has_begun = False
        self.lapses = 0


class Witness:
    """Writes the history of one schedule. `finished` is set when every stored job has finished."""

    def __init__(self, clock: ManualClock, retry: RetrySchedule) -> None:
        self._clock = clock
        self._retry = retry
        self.events: list[Event] = []
        self.found: list[Violation] = []
        self.known: dict[str, Known] = {}
        self.unfinished = 0
        self.finished = Signal()
        self._names: dict[str | None, str] = {}  # tokens are random; their names are not
        self._stories: dict[str | None, str] = {}  # by token: the name of the job's life that it belongs to
        self._lives: dict[str, int] = {}
        self._op = self._places = 0
        self.in_transaction: dict[str, str] = {}  # by token: the op of a handle that ends with its commit
        self.effects: list[tuple[str, str]] = []  # story and lease of each committed effect

    def now(self) -> float:
        return round(self._clock.time(), 6)

    def note(self, name: str, holder: str, about: str | None = None) -> None:
        """Record an event outside the store: a fault, a start, an end."""
        self.write("invoke", name, self.new_op(), about, holder)

    def write(
        self,
        phase: Phase,
        name: str,
        op: str,
        id: str | None = None,
        holder: str | None = None,
        version: int | None = None,
        at: float | None = None,
        until: float | None = None,
        error: str | None = None,
    ) -> None:
        at = self.now() if at is None else at
        self.events.append(Event(phase, name, op, id, holder, version, at, until, 0, error))

    def new_op(self) -> str:
        self._op += 1
        return str(self._op)

    def name_of(self, token: str | None) -> str:
        name = self._names.get(token)
        if name is None:
            name = self._names[token] = f"lease {len(self._names) + 1}"
        return name

    def story(self, job_id: str, token: str | None = None) -> str:
        """The name of a job in the history; a new one after an operator has retried it."""
        if token in self._stories:
            return self._stories[token]
        lives = self._lives.get(job_id, 1)
        return job_id if lives == 1 else f"{job_id}, life {lives}"

    def broken(self, kind: str, id: str | None, message: str) -> None:
        self.found.append(Violation(kind, id, message))

    # -- what the store did --------------------------------------------------------------------------------------

    def stored(self, queue: str, rows: Sequence[NewRow], inserted: Inserted) -> None:
        for row in rows:
            if row.id not in inserted.ids:
                continue
            known = self.known.get(row.id)
            if known is not None and known.is_done:  # discarded, and a late request for it arrived
                self._live_again(row.id)
            self._places += 1
            place = (row.priority, self._places)
            self.known[row.id] = Known(queue, place, inserted.at + row.delay, row.max_retries)
            self.unfinished += 1
            self.finished.clear()

    def discarded(self, job_id: str) -> None:
        op = self.new_op()
        for phase in ("invoke", "ok"):
            self.write(phase, "discard", op, self.story(job_id))
        self.finish(self.known[job_id])

    def retried(self, job_id: str) -> None:
        """An operator has retried a Failed job and so reset its retries."""
        old = self.known[job_id]
        if not old.is_done:
            self.broken("retried", job_id, "it had not failed")
        self._live_again(job_id)
        self.known[job_id] = Known(old.queue, old.place, self.now(), old.max_retries)
        self.unfinished += 1
        self.finished.clear()

    def _live_again(self, job_id: str) -> None:
        self._lives[job_id] = self._lives.get(job_id, 1) + 1
        op = self.new_op()
        for phase in ("invoke", "ok"):
            self.write(phase, "enqueue", op, self.story(job_id))

    def claimed(self, op: str, claim: Claim, rows: Sequence[JobRow], more: bool) -> None:
        now = self.now()
        self._judge_order(claim, rows, more, now)
        for row in rows:
            until = row.lease_expires_at
            holder, story = self.name_of(row.lease_token), self.story(row.id)
            self._stories[row.lease_token] = story
            self.write("ok", "claim", op, story, holder, row.lease_version, now, until)
            known = self.known.get(row.id)
            if known is not None:
                known.claimable_at = until
                known.lapses += known.is_held and known.has_begun
                known.is_held = True
                known.has_begun = bool(row.lease_begun)
                if known.lapses >= claim.max_lease_expiries:
                    self.broken("circles", row.id, f"claimed again after {known.lapses} leases have lapsed")
        if not rows:
            self.write("ok", "claim", op, at=now)

    def began(self, ids: Iterable[str]) -> None:
        for job_id in ids:
            if (known := self.known.get(job_id)) is not None:
                known.has_begun = True

    def _judge_order(self, claim: Claim, rows: Sequence[JobRow], more: bool, now: float) -> None:
        known = [self.known[row.id] for row in rows if row.id in self.known]
        for row, job in zip(rows, known, strict=False):
            if job.claimable_at > now + 1e-6:
                due = "never" if job.claimable_at == math.inf else f"at {job.claimable_at:.6f}"
                self.broken("claimed-early", row.id, f"claimed at {now:.6f}, and it was claimable {due}")
        left = [
            (job_id, job)
            for job_id, job in self.known.items()
            if job.claimable_at <= now - 1e-6 and job.queue in claim.queues and job not in known
        ]
        if (
            left and len(rows) < claim.limit and not more
        ):  # else jobs that failed in the claim took the places
            self.broken("passed-over", left[0][0], f"claimable, and the claim brought {len(rows)} jobs")
        for place in self._orders(claim, [*known, *(job for _, job in left)], more, now):
            places = [place[job] for job in known if job in place]
            if places != sorted(places):
                self.broken("order", rows[0].id, f"claimed in the order {places}")
            for job_id, job in left:
                if places and job in place and place[job] < max(places):
                    self.broken("passed-over", job_id, f"claimable, of place {place[job]}; brought: {places}")

    def _orders(
        self, claim: Claim, jobs: list[Known], more: bool, now: float
    ) -> Iterable[dict[Known, tuple[int, ...]]]:
        """Yield the orders that a claim must keep: by priority, in each queue by age, and by turns between queues."""
        yield {job: job.place[:1] for job in jobs}
        for queue in claim.queues:
            yield {job: job.place for job in jobs if job.queue == queue}
        if more or any(abs(job.claimable_at - now) < 1e-6 for job in self.known.values()):
            return  # a job that failed in the claim, or is due at this moment, may have had a turn
        by_turns: dict[Known, tuple[int, ...]] = {}
        turns: Counter[tuple[str, int]] = Counter()
        for job in sorted(jobs, key=lambda job: job.place):
            priority = job.place[0]
            turns[job.queue, priority] += 1
            by_turns[job] = priority, turns[job.queue, priority], claim.queues.index(job.queue)
        yield by_turns

    def settled(self, op: str, end: Settlement, accepted: bool) -> None:
        name, holder = name_of_end(end), self.name_of(end.token)
        self.write("ok" if accepted else "fail", name, op, self.story(end.job_id, end.token), holder)
        known = self.known.get(end.job_id)
        if not accepted or known is None:
            return
        known.is_held = False
        if end.state in (JobState.SUCCEEDED, JobState.FAILED):
            self.finish(known)
        else:
            known.claimable_at = self.now() + (end.delay or 0.0)
        if end.outcome == "failed":
            known.failures += 1
            bound = min(self._retry.base_seconds * 2.0 ** (known.failures - 1), self._retry.max_seconds)
            if end.delay is not None and not 0.0 <= end.delay <= bound:
                self.broken(
                    "jitter", end.job_id, f"a delay of {end.delay:g} s, where {bound:g} s is the most"
                )
            if known.failures > 1 + known.max_retries:
                self.broken(
                    "retries", end.job_id, f"failed {known.failures} times, max_retries {known.max_retries}"
                )
            if end.state is JobState.FAILED and known.failures < 1 + known.max_retries:
                self.broken(
                    "retries", end.job_id, f"given up after {known.failures} of {1 + known.max_retries}"
                )
            if end.state is JobState.READY and known.failures == 1 + known.max_retries:
                self.broken("retries", end.job_id, f"to run again after {known.failures} failures")

    def committed(self, end: Settlement) -> None:
        """An effect and its ack are committed. They have no time: the transaction's lock has excluded others since it
        began, so the lease counts for as long.
        """
        story, holder = self.story(end.job_id, end.token), self.name_of(end.token)
        self.effects.append((story, holder))
        handle, ack = self.in_transaction.pop(end.token), self.new_op()
        self.events.append(Event("ok", "handle", handle, story, holder))
        self.events.append(Event("invoke", "ack", ack, story, holder))
        self.events.append(Event("ok", "ack", ack, story, holder))
        known = self.known.get(end.job_id)
        if known is not None:
            known.is_held = False
            self.finish(known)

    def finish(self, known: Known) -> None:
        known.claimable_at = math.inf
        if not known.is_done:
            known.is_done = True
            self.unfinished -= 1
            if not self.unfinished:
                self.finished.set()

    def kept(self, op: str, job_id: str, token: str, until: float | None) -> None:
        phase: Phase = "fail" if until is None else "ok"
        self.write(phase, "heartbeat", op, self.story(job_id, token), self.name_of(token), until=until)
        known = self.known.get(job_id)
        if until is not None and known is not None and known.claimable_at != math.inf:
            known.claimable_at = max(known.claimable_at, until)

    def waited(self, queues: Sequence[str], since: float) -> None:
        """A process waited for work from `since` until now. Work that arrived meanwhile must have ended the wait."""
        now = self.now()
        for id, known in self.known.items():
            if known.queue in queues and since <= known.claimable_at < now - 1e-3:
                message = f"claimable since {known.claimable_at:.6f}, but a waiting process was notified at {now:.6f}"
                self.broken("slept-through", id, message)

    # -- what handlers did ---------------------------------------------------------------------------------------

    def begin_handling(self, job: Job) -> str:
        assert job.lease is not None
        op = self.new_op()
        token = job.lease.token
        self.write("invoke", "handle", op, self.story(job.id, token), self.name_of(token))
        return op

    def end_handling(self, op: str, job: Job, phase: Phase) -> None:
        assert job.lease is not None
        token = job.lease.token
        self.write(phase, "handle", op, self.story(job.id, token), self.name_of(token))


def name_of_end(end: Settlement) -> str:
    """The name of the settlement's operation in the history."""
    if end.state is JobState.SUCCEEDED:
        return "ack"
    if end.state is JobState.FAILED:
        return "bury"
    return "nack" if end.outcome == "failed" else "release"
