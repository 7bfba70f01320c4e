"""The operations of a job store, as flows: one implementation for all stores, synchronous and asyncio."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from conquiet import payload as json_rule
from conquiet.checks import (
    MAX_INT,
    checked_int,
    checked_name,
    checked_queues,
    checked_seconds,
)
from conquiet.clock import on_grid, utc
from conquiet.errors import (
    IllegalTransitionError,
    JobConfigError,
    JobNotFoundError,
    StaleLeaseError,
    StoreOutcomeUnknownError,
    StoreUnavailableError,
)
from conquiet.flow import Flow
from conquiet.jobs.backends.damage import UNREADABLE, claimed, damage, extended, settled, shown_job
from conquiet.jobs.backends.protocol import Backend, Claim, Inserted, JobRow, NewRow, Settlement
from conquiet.jobs.backends.rows import job_of, new_ids
from conquiet.jobs.error_text import error_text
from conquiet.jobs.model import Job, JobState, Nack, NewJob, QueueStats, SettleResult
from conquiet.jobs.retry import RetrySchedule

__all__ = ["JobOperations"]


class JobOperations:
    def __init__(
        self,
        backend: Backend,
        *,
        retry: RetrySchedule,
        random: Callable[[], float],
        max_lease_expiries: int,
        limits: json_rule.PayloadLimits,
    ) -> None:
        self.backend = backend
        self._retry = retry
        self._random = random
        self._max_lease_expiries = checked_int(
            "max_lease_expiries", max_lease_expiries, 1, MAX_INT, error=JobConfigError
        )
        self._limits = limits

    def awaiting(self) -> JobOperations:
        """Return the same operations for asyncio."""
        twin = copy.copy(self)
        twin.backend = self.backend.awaiting()
        return twin

    def enqueue(self, queue: str, new: NewJob, connection: Any) -> Flow[Job]:
        row = self._new_row(new, new_ids(1)[0])
        enqueued_at, _ = yield from self._insert(
            checked_name("queue", queue, error=JobConfigError), [row], False, connection
        )
        return Job(
            id=row.id,
            queue=queue,
            payload=json_rule.decode(row.payload),
            priority=row.priority,
            state=JobState.READY,
            retries=0,
            max_retries=row.max_retries,
            retry_at=utc(on_grid(enqueued_at + row.delay)) if row.delay else None,
            enqueued_at=utc(enqueued_at),
            correlation_id=row.correlation_id,
        )

    def enqueue_many(
        self, queue: str, items: Iterable[Mapping[str, Any] | NewJob], on_duplicate: str, connection: Any
    ) -> Flow[list[str]]:
        if on_duplicate not in ("error", "skip"):
            raise JobConfigError(f"on_duplicate must be 'error' or 'skip', not {on_duplicate!r}")
        checked_name("queue", queue, error=JobConfigError)
        rows = self._new_rows(list(items))
        if not rows:
            return []
        if on_duplicate == "error":
            yield from self._insert(queue, rows, False, connection)
            return [row.id for row in rows]
        _, added = yield from self._insert(queue, rows, True, connection)
        return list(dict.fromkeys(row.id for row in rows if row.id in added))

    def _insert(self, queue: str, rows: list[NewRow], skip: bool, connection: Any) -> Flow[Inserted]:
        try:
            return (yield from self.backend.insert(queue, rows, skip, connection))
        except StoreOutcomeUnknownError as error:
            error.ids = tuple(
                row.id for row in rows
            )  # with these ids and "skip" the caller can safely repeat the call
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
        )

    def claim(
        self, queues: str | Sequence[str], limit: int, lease_ttl: float, worker: str
    ) -> Flow[list[Job]]:
        claim = Claim(
            checked_queues(queues, error=JobConfigError),
            checked_int("limit", limit, 1, 100_000, error=JobConfigError),
            checked_seconds("lease_ttl", lease_ttl, above_zero=True, error=JobConfigError),
            checked_name("worker", worker, error=JobConfigError),
            self._max_lease_expiries,
        )
        jobs: list[Job] = []
        more = True
        while more and len(jobs) < limit:
            # A second round is needed only if this claim marked jobs as Failed, which then took places of the limit:
            # either their last lease has expired, or their rows are damaged. After damaged rows it runs only while no
            # job is leased yet, because its lease would run during that round.
            try:
                rows, more = yield from claimed(self.backend, claim._replace(limit=limit - len(jobs)))
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
        return (
            yield from self._settle("ack", [(job, _ack(job) if _held("ack", job) else None) for job in jobs])
        )

    def nack_many(self, nacks: Iterable[Nack | Job]) -> Flow[list[SettleResult]]:
        items = [item if isinstance(item, Nack) else Nack(item) for item in nacks]
        ends = [(item.job, self._nack(item) if _held("nack", item.job) else None) for item in items]
        return (yield from self._settle("nack", ends))

    def release_many(self, jobs: Iterable[Job]) -> Flow[list[SettleResult]]:
        ends = [(job, _release(job) if _held("release", job) else None) for job in jobs]
        return (yield from self._settle("release", ends))

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

    def get(self, job_id: str) -> Flow[Job | None]:
        row = yield from self.backend.get(checked_name("id", job_id, error=JobConfigError))
        return None if row is None else shown_job(row)

    def is_settled(self, job: Job, outcome: str) -> Flow[bool]:
        """Return whether exactly this lease ended with `outcome`. This resolves an unknown outcome."""
        found = yield from self.get(job.id)
        version = job.lease.version if job.lease else 0
        return found is not None and any((a.number, a.outcome) == (version, outcome) for a in found.attempts)

    def list_jobs(
        self, state: JobState | None, queue: str | None, limit: int, offset: int
    ) -> Flow[list[Job]]:
        checked_int("limit", limit, 1, MAX_INT, error=JobConfigError)
        checked_int("offset", offset, 0, MAX_INT, error=JobConfigError)
        if state is not None and state not in tuple(JobState):
            raise JobConfigError(f"state must be one of {', '.join(JobState)}, not {state!r}")
        known = None if state is None else JobState(state)
        rows = yield from self.backend.select(known, _queue_or_all(queue), limit, offset)
        return [shown_job(row) for row in rows]

    def stats(self, queue: str | None) -> Flow[dict[str, QueueStats]]:
        return {stats.queue: stats for stats in (yield from self.backend.stats(_queue_or_all(queue)))}

    def retry(self, job_id: str) -> Flow[Job]:
        if not (yield from self.backend.retry(checked_name("id", job_id, error=JobConfigError))):
            yield from self._refuse_move("retried", "Failed", job_id)
        job = yield from self.get(job_id)
        if job is None:
            raise JobNotFoundError(
                f"job {job_id!r} was retried, but another process removed it right afterwards"
            )
        return job

    def discard(self, job_id: str) -> Flow[None]:
        if not (yield from self.backend.discard(checked_name("id", job_id, error=JobConfigError))):
            yield from self._refuse_move("discarded", "Ready or Failed", job_id)

    def prune(self, older_than: float) -> Flow[int]:
        return (
            yield from self.backend.prune(checked_seconds("older_than", older_than, error=JobConfigError))
        )

    def _refuse_move(self, done: str, states: str, job_id: str) -> Flow[None]:
        job = yield from self.get(job_id)
        if job is None:
            raise JobNotFoundError(f"there is no job {job_id!r}")
        raise IllegalTransitionError(
            f"job {job_id!r} is {job.state.value}: only a job that is {states} can be {done}. Nothing was changed"
        )

    def _nack(self, nack: Nack) -> Settlement:
        job, error = nack.job, nack.error
        token = _token("nack", job)
        retry = nack.retryable and job.retries < job.max_retries
        kind = type(error).__qualname__ if isinstance(error, BaseException) else None
        return Settlement(
            job_id=job.id,
            token=token,
            state=JobState.READY if retry else JobState.FAILED,
            outcome="failed",
            retry=retry,
            delay=(nack.schedule or self._retry).delay(job.retries, self._random) if retry else None,
            error=None if error is None else error_text(error),
            error_type=None if kind is None else error_text(kind),
            category=None if nack.category is None else error_text(nack.category),
        )

    def _settle_one(self, what: str, job: Job, settlement: Settlement, connection: Any) -> Flow[None]:
        if settlement.token not in (yield from self.backend.settle([settlement], connection)):
            raise _stale(what, job)

    def _settle(self, what: str, items: Sequence[tuple[Job, Settlement | None]]) -> Flow[list[SettleResult]]:
        """Do for each item what the single call would do. A second item for the same lease is refused as stale."""
        first = {end.token: end for _, end in reversed(items) if end is not None}
        current = (yield from settled(self.backend, list(first.values()))) if first else set()
        if len(current) == len(items):  # the usual case
            return [SettleResult(job.id, True) for job, _ in items]
        results = []
        for job, end in items:
            ok = end is not None and end.token in current
            results.append(_result(what, job, ok))
            if end is not None:
                current.discard(end.token)
        return results


def _add_readable(rows: Sequence[JobRow], jobs: list[Job]) -> list[JobRow]:
    """Add the jobs in `rows` to `jobs` and return the damaged rows."""
    damaged = []
    for row in rows:
        try:
            jobs.append(job_of(row))
        except UNREADABLE:
            damaged.append(row)
    return damaged


def _queue_or_all(queue: str | None) -> str | None:
    return None if queue is None else checked_name("queue", queue, error=JobConfigError)


def _ack(job: Job) -> Settlement:
    token = _token("ack", job)  # first, because it refuses anything that is not a Job
    return Settlement(job.id, token, JobState.SUCCEEDED, "succeeded")


def _release(job: Job) -> Settlement:
    token = _token("release", job)
    return Settlement(job.id, token, JobState.READY, "released")


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
