"""The operations of a job store, as flows: one implementation for all stores, synchronous and asyncio."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from conquiet import payload as json_rule
from conquiet.checks import MAX_INT, checked_int, checked_name, checked_queues, checked_seconds
from conquiet.clock import utc
from conquiet.errors import (
    JobConfigError,
    StaleLeaseError,
    StoreOutcomeUnknownError,
    StoreUnavailableError,
)
from conquiet.flow import Flow
from conquiet.jobs.administration import JobAdministration
from conquiet.jobs.backends.damage import UNREADABLE, claimed, damage, extended, settled
from conquiet.jobs.backends.protocol import (
    Backend,
    Claim,
    Inserted,
    JobRow,
    NewRow,
    Settlement,
)
from conquiet.jobs.backends.rows import due_at, job_of, new_ids
from conquiet.jobs.error_text import error_text, error_texts
from conquiet.jobs.model import Job, JobState, Nack, NewJob, SettleResult
from conquiet.jobs.retry import RetrySchedule
from conquiet.observe import count_enqueued

__all__ = ["Failures", "Items", "JobOperations"]

Items = Iterable[Mapping[str, Any] | NewJob]
Failures = Sequence[tuple[Job, Settlement | None]]  # None: the job has no lease


class JobOperations(JobAdministration):
    def __init__(
        self,
        backend: Backend,
        *,
        retry: RetrySchedule,
        random: Callable[[], float],
        max_lease_expiries: int,
        limits: json_rule.PayloadLimits,
        retention: float | None = None,
    ) -> None:
        self.backend = backend
        self._retry = retry
        self._random = random
        self._max_lease_expiries = checked_int(
            "max_lease_expiries", max_lease_expiries, 1, MAX_INT, error=JobConfigError
        )
        self._limits = limits
        if retention is not None:
            checked_seconds("retention", retention, error=JobConfigError)
        self.retention = retention
        # What kind of job a payload is, for metrics; None: all jobs of a queue are of one kind, as in `JobPlans.task`.
        self.task_of: Callable[[Mapping[str, Any]], str | None] | None = None

    def awaiting(self) -> JobOperations:
        """Return the same operations for asyncio."""
        twin = copy.copy(self)
        twin.backend = self.backend.awaiting()
        return twin

    def for_worker(self) -> JobOperations:
        """Return the same operations for a worker: they do not wait for a connection behind others."""
        twin = copy.copy(self)
        twin.backend = self.backend.for_worker()
        return twin

    def enqueue(self, queue: str, new: NewJob, connection: Any, notify: bool = True) -> Flow[Job]:
        row = self._new_row(new, new_ids(1)[0])
        checked_name("queue", queue, error=JobConfigError)
        enqueued_at, _ = yield from self._insert(queue, [row], False, connection, notify)
        self._count(queue, [new])
        return Job(
            id=row.id,
            queue=queue,
            payload=json_rule.decode(row.payload),
            priority=row.priority,
            state=JobState.READY,
            retries=0,
            max_retries=row.max_retries,
            retry_at=None if (due := due_at(row, enqueued_at)) is None else utc(due),
            enqueued_at=utc(enqueued_at),
            correlation_id=row.correlation_id,
        )

    def enqueue_many(
        self, queue: str, items: Items, on_duplicate: str, connection: Any, notify: bool = True
    ) -> Flow[list[str]]:
        if on_duplicate not in ("error", "skip"):
            raise JobConfigError(f"on_duplicate must be 'error' or 'skip', not {on_duplicate!r}")
        checked_name("queue", queue, error=JobConfigError)
        series = _series(items)
        rows = self._new_rows(series)
        if not rows:
            return []
        if on_duplicate == "error":
            yield from self._insert(queue, rows, False, connection, notify)
            self._count(queue, series)
            return [row.id for row in rows]
        _, added = yield from self._insert(queue, rows, True, connection, notify)
        new = {row.id: item for row, item in zip(rows, series, strict=True) if row.id in added}
        self._count(queue, list(new.values()))
        return list(new)

    def _count(self, queue: str, items: Sequence[Mapping[str, Any] | NewJob]) -> None:
        task_of = self.task_of
        if task_of is None:
            count_enqueued(queue, queue, len(items))
            return
        tasks = Counter(task_of(item.payload if isinstance(item, NewJob) else item) for item in items)
        for task, number in tasks.items():
            count_enqueued(queue, task or "", number)

    def _insert(
        self, queue: str, rows: list[NewRow], skip: bool, connection: Any, notify: bool
    ) -> Flow[Inserted]:
        try:
            return (yield from self.backend.insert(queue, rows, skip, connection, notify))
        except StoreOutcomeUnknownError as error:
            # With these ids and "skip" the caller can safely repeat the call.
            error.ids = tuple(row.id for row in rows)
            raise

    def _new_rows(self, items: Sequence[Mapping[str, Any] | NewJob]) -> list[NewRow]:
        """Hot path: defaults are not checked, and random numbers are drawn once for all rows."""
        encode, limits, max_retries = json_rule.encode, self._limits, self._retry.max_retries
        return [
            self._new_row(item, new_id)
            if isinstance(item, NewJob)
            else NewRow(new_id, encode(item, limits).decode(), 5, 0.0, max_retries, None)  # type: ignore[arg-type]
            for item, new_id in zip(items, new_ids(len(items)), strict=True)
        ]

    def _new_row(self, new: NewJob, new_id: str) -> NewRow:
        return NewRow(
            id=new_id if new.id is None else checked_name("id", new.id, error=JobConfigError),
            payload=json_rule.encode(new.payload, self._limits).decode(),  # type: ignore[arg-type]
            priority=checked_int("priority", new.priority, -(2**31), MAX_INT, error=JobConfigError),
            delay=checked_seconds("delay", new.delay, error=JobConfigError),
            max_retries=(
                self._retry.max_retries
                if new.max_retries is None
                else checked_int("max_retries", new.max_retries, 0, MAX_INT, error=JobConfigError)
            ),
            correlation_id=(
                None
                if new.correlation_id is None
                else checked_name("correlation_id", new.correlation_id, error=JobConfigError)
            ),
            at=None if new.at is None else _checked_time(new),
        )

    def claim(
        self,
        queues: str | Sequence[str],
        limit: int,
        lease_ttl: float,
        worker: str,
        begun: int | None = None,
    ) -> Flow[list[Job]]:
        claim = Claim(
            checked_queues(queues, error=JobConfigError),
            checked_int("limit", limit, 1, 100_000, error=JobConfigError),
            checked_seconds("lease_ttl", lease_ttl, above_zero=True, error=JobConfigError),
            checked_name("worker", worker, error=JobConfigError),
            self._max_lease_expiries,
            None if begun is None else checked_int("begun", begun, 0, 100_000, error=JobConfigError),
        )
        jobs: list[Job] = []
        more = True
        while more and len(jobs) < limit:
            # A second round is needed only if this claim marked jobs as Failed, which then took places of the limit:
            # either their last lease has expired, or their rows are damaged. After damaged rows it runs only while no
            # job is leased yet, because its lease would run during that round.
            try:
                left = None if begun is None else max(0, begun - len(jobs))
                rows, more = yield from claimed(
                    self.backend, claim._replace(limit=limit - len(jobs), begun=left)
                )
                damaged = _add_readable(rows, jobs)
                for row in damaged:
                    yield from self.backend.set_aside(row.id, row.lease_token or "", damage(row))
            except StoreUnavailableError:
                if not jobs:
                    raise
                break  # jobs that are already leased must reach their worker; the next claim reports the outage
            more = more or bool(damaged and not jobs)
        return jobs

    def ack(self, job: Job, connection: Any) -> Flow[None]:
        yield from self._settle_one("ack", job, _ack(job), connection)

    def nack(self, nack: Nack) -> Flow[None]:
        yield from self._settle_one("nack", nack.job, self._nack(nack), None)

    def release(self, job: Job) -> Flow[None]:
        yield from self._settle_one("release", job, _release(job), None)

    def ack_many(self, jobs: Iterable[Job]) -> Flow[list[SettleResult]]:
        ends = [(job, _ack(job) if _held("ack", job) else None) for job in jobs]
        return (yield from self._settle("ack", ends))

    def nack_many(self, nacks: Iterable[Nack | Job]) -> Flow[list[SettleResult]]:
        return self.settle_failed(self.failed(nacks))

    def failed(self, nacks: Iterable[Nack | Job]) -> Failures:
        """Decide what becomes of jobs that have failed: whether and when each runs again, and what its history says."""
        items = [item if isinstance(item, Nack) else Nack(item) for item in nacks]
        return [(item.job, self._nack(item) if _held("nack", item.job) else None) for item in items]

    def settle_failed(self, failures: Failures) -> Flow[list[SettleResult]]:
        return self._settle("nack", failures)

    def release_many(self, jobs: Iterable[Job]) -> Flow[list[SettleResult]]:
        ends = [(job, _release(job) if _held("release", job) else None) for job in jobs]
        return (yield from self._settle("release", ends))

    def defer_many(self, items: Iterable[tuple[Nack, float]]) -> Flow[list[SettleResult]]:
        """`release_many` for jobs that are due again after that many seconds. Their history has the error, if any."""
        ends = [
            (item.job, _defer(item, delay) if _held("release", item.job) else None) for item, delay in items
        ]
        return (yield from self._settle("release", ends))

    def return_many(self, jobs: Iterable[Job]) -> Flow[list[SettleResult]]:
        """`release_many` for jobs that were only held in advance. Their history does not mention it."""
        ends = [
            (job, _release(job)._replace(outcome="unbegun") if _held("release", job) else None)
            for job in jobs
        ]
        return (yield from self._settle("release", ends))

    def begin_many(self, jobs: Iterable[Job]) -> Flow[list[SettleResult]]:
        return (yield from self.ack_and_begin((), jobs))[1]

    def ack_and_begin(
        self, acks: Iterable[Job], begins: Iterable[Job]
    ) -> Flow[tuple[list[SettleResult], list[SettleResult]]]:
        """`ack_many` and `begin_many` in one step: jobs that have ended, and those that take their places."""
        ends = [(job, _ack(job) if _held("ack", job) else None) for job in acks]
        starts = [(job, _token("begin", job) if _held("begin", job) else None) for job in begins]
        leases = [(job.id, token) for job, token in starts if token]
        if not leases:
            return (yield from self._settle("ack", ends)), [_result("begin", job, False) for job, _ in starts]
        results, current = yield from self._settle_and_begin(ends, leases)
        return results, [_result("begin", job, token in current) for job, token in starts]

    def heartbeat(self, job: Job) -> Flow[Job]:
        token = _token("heartbeat", job)
        expiries = yield from self.backend.heartbeat([(job.id, token)])
        if token not in expiries:
            raise _stale("heartbeat", job)
        try:
            return job.leased_until(utc(expiries[token]))
        except UNREADABLE as error:
            raise StoreUnavailableError(
                f"heartbeat of job {job.id!r}: its row is damaged, lease_expires_at is not a time"
            ) from error

    def heartbeat_many(self, jobs: Iterable[Job]) -> Flow[list[SettleResult]]:
        items = [(job, _token("heartbeat", job) if _held("heartbeat", job) else None) for job in jobs]
        current = yield from extended(self.backend, [(job.id, token) for job, token in items if token])
        return [_result("heartbeat", job, token in current) for job, token in items]

    def _nack(self, nack: Nack) -> Settlement:
        job = nack.job
        token = _token("nack", job)
        schedule = nack.schedule or self._retry
        delay = schedule.after_failure(job.retries, job.max_retries, nack.retryable, self._random)
        error, kind, traceback = error_texts(nack.error)
        return Settlement(
            job_id=job.id,
            token=token,
            state=JobState.FAILED if delay is None else JobState.READY,
            outcome="failed",
            retry=delay is not None,
            delay=delay,
            error=error,
            error_type=kind,
            category=None if nack.category is None else error_text(nack.category),
            traceback=traceback,
        )

    def _settle_one(self, what: str, job: Job, settlement: Settlement, connection: Any) -> Flow[None]:
        if settlement.token not in (yield from self.backend.settle([settlement], connection)):
            raise _stale(what, job)

    def _settle(self, what: str, items: Sequence[tuple[Job, Settlement | None]]) -> Flow[list[SettleResult]]:
        """Do for each item what the single call would do. A second item for the same lease is refused as stale."""
        return (yield from self._settle_and_begin(items, (), what))[0]

    def _settle_and_begin(
        self,
        items: Sequence[tuple[Job, Settlement | None]],
        begins: Sequence[tuple[str, str]],
        what: str = "ack",
    ) -> Flow[tuple[list[SettleResult], set[str]]]:
        first = {end.token: end for _, end in reversed(items) if end is not None}
        current: set[str] = set()
        if first or begins:
            current = yield from settled(self.backend, list(first.values()), begins)
        begun = {token for _, token in begins if token in current} if begins else set()
        if len(current) - len(begun) == len(items):  # the usual case
            return [SettleResult(job.id, True) for job, _ in items], begun
        results = []
        for job, end in items:
            ok = end is not None and end.token in current
            results.append(_result(what, job, ok))
            if end is not None:
                current.discard(end.token)
        return results, begun


def _checked_time(new: NewJob) -> float:
    if new.delay:
        raise JobConfigError("delay= and at= exclude each other: give one of them")
    if not isinstance(new.at, datetime) or new.at.tzinfo is None:
        raise JobConfigError(
            f"at= must be a datetime with a time zone (such as datetime.now(UTC)), not {new.at!r}"
        )
    return new.at.timestamp()


def _add_readable(rows: Sequence[JobRow], jobs: list[Job]) -> list[JobRow]:
    """Add the jobs in `rows` to `jobs` and return the damaged rows."""
    damaged = []
    for row in rows:
        try:
            jobs.append(job_of(row))
        except UNREADABLE:
            damaged.append(row)
    return damaged


def _ack(job: Job) -> Settlement:
    token = _token("ack", job)  # first, because it refuses anything that is not a Job
    return Settlement(job.id, token, JobState.SUCCEEDED, "succeeded")


def _release(job: Job) -> Settlement:
    token = _token("release", job)
    return Settlement(job.id, token, JobState.READY, "released")


def _defer(item: Nack, delay: float) -> Settlement:
    text, kind, _ = error_texts(item.error)
    return _release(item.job)._replace(delay=delay, error=text, error_type=kind, category=item.category)


def _held(what: str, job: Job) -> bool:
    if not isinstance(job, Job):
        raise JobConfigError(f"{what} takes a Job, not {type(job).__name__}")
    return job.lease is not None


def _token(what: str, job: Job) -> str:
    if not _held(what, job) or job.lease is None:
        raise _stale(what, job)
    return job.lease.token


def _result(what: str, job: Job, ok: bool) -> SettleResult:
    return SettleResult(job.id, ok, None if ok else _stale(what, job))


def _stale(what: str, job: Job) -> StaleLeaseError:
    if job.lease is None:
        return StaleLeaseError(
            f"{what} of job {job.id!r}: this Job was not claimed (it is {job.state.value}): only a Job returned by "
            "claim() can be settled"
        )
    return StaleLeaseError(
        f"{what} of job {job.id!r}: its lease (version {job.lease.version}) has expired, was taken over or is settled. Nothing "
        "was changed. The job may be running elsewhere: drop this result"
    )


def _series(items: object) -> list[Any]:
    if isinstance(items, Iterable) and not isinstance(items, str | bytes | Mapping):
        return list(items)
    raise JobConfigError(f"items must be payloads or NewJob objects, not one {type(items).__name__}")
