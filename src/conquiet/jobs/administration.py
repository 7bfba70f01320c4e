"""What people and other programs ask of a job store, beside the work itself: look, count, retry, discard, prune."""

from __future__ import annotations

from conquiet.checks import checked_int, checked_name, checked_seconds
from conquiet.errors import IllegalTransitionError, JobConfigError, JobNotFoundError
from conquiet.flow import Flow
from conquiet.jobs.backends.damage import shown_job
from conquiet.jobs.backends.protocol import PRUNE_STEP, Backend, Listing
from conquiet.jobs.listing import checked_listing, checked_queue
from conquiet.jobs.model import Job, JobPage, QueueStats

__all__ = ["JobAdministration"]


class JobAdministration:
    backend: Backend

    def get(self, job_id: str) -> Flow[Job | None]:
        row = yield from self.backend.get(checked_name("id", job_id, error=JobConfigError))
        return None if row is None else shown_job(row)

    def is_settled(self, job: Job, outcome: str) -> Flow[bool]:
        """Return whether exactly this lease ended with `outcome`. This resolves an unknown outcome."""
        found = yield from self.get(job.id)
        version = job.lease.version if job.lease else 0
        return found is not None and any((a.number, a.outcome) == (version, outcome) for a in found.attempts)

    def list_jobs(self, listing: Listing) -> Flow[JobPage]:
        rows = yield from self.backend.select(checked_listing(listing))
        last = rows[-1][0] if len(rows) == listing.limit else None
        return JobPage((shown_job(row) for _, row in rows), last)

    def stats(self, queue: str | None) -> Flow[dict[str, QueueStats]]:
        return {stats.queue: stats for stats in (yield from self.backend.stats(checked_queue(queue)))}

    def backlog(self, queue: str, limit: int) -> Flow[int]:
        checked_name("queue", queue, error=JobConfigError)
        checked_int("limit", limit, 1, error=JobConfigError)
        return (yield from self.backend.backlog(queue, limit))

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
        checked_seconds("older_than", older_than, error=JobConfigError)
        removed, step = 0, PRUNE_STEP
        while step == PRUNE_STEP:
            step = yield from self.backend.prune(older_than)
            removed += step
        return removed

    def _refuse_move(self, done: str, states: str, job_id: str) -> Flow[None]:
        job = yield from self.get(job_id)
        if job is None:
            raise JobNotFoundError(f"there is no job {job_id!r}")
        raise IllegalTransitionError(
            f"job {job_id!r} is {job.state.value}: only a job that is {states} can be {done}. Nothing was changed"
        )
