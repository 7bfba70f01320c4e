"""One record of the logger `conquiet.jobs` for each event of an attempt: a line for people, fields for machines.

Arguments of jobs are not logged. Texts of exceptions are shown as the store has them, without passwords.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from conquiet.clock import Clock, utc_text
from conquiet.jobs.model import Job, JobState
from conquiet.jobs.worker.events.listener import AttemptListener
from conquiet.jobs.worker.held import Held
from conquiet.observe import SafeLogger
from conquiet.redaction import described, first_line, printable, shown_lines

__all__ = ["AttemptLog"]

_log = SafeLogger("conquiet.jobs")

# Not the SafeLogger that writes: whether anybody listens is asked for every batch of jobs.
_listens = logging.getLogger("conquiet.jobs").isEnabledFor


class AttemptLog(AttemptListener):
    def __init__(self, worker: str, clock: Clock) -> None:
        self._worker = worker
        self._clock = clock

    def wants_starts(self) -> bool:
        return _listens(logging.DEBUG)

    def settled(self, batch: Sequence[Held], outcome: str) -> None:
        if outcome == "failed":
            for held in batch:
                self._failed(held)
        elif _listens(logging.INFO):
            if outcome == "succeeded":
                self._succeeded(batch)
            else:
                self._given_back(batch, _listens(logging.DEBUG))

    def lost(self, batch: Sequence[Held], error: BaseException | None) -> None:
        if _listens(logging.INFO):
            for held in batch:
                if held.started:
                    self._lost(held, error)

    def started(self, held: Held) -> None:
        job = held.context.job
        _log.record(
            logging.DEBUG,
            "%s started (job %s, attempt %d of %d)",
            _named(held, job),
            self._fields(held, job, "started", None),
        )

    def _succeeded(self, batch: Sequence[Held]) -> None:
        _log.records(
            logging.INFO, "%s succeeded in %.3f s (job %s, attempt %d of %d)", map(self._success, batch)
        )

    def _success(self, held: Held) -> tuple[tuple[Any, ...], dict[str, Any]]:
        job, seconds = held.context.job, held.seconds
        name, *about = _named(held, job)
        return (name, seconds, *about), self._fields(held, job, "succeeded", seconds)

    def _failed(self, held: Held) -> None:
        """Tell of a failure, at WARNING if the job is retried and otherwise at ERROR, with its traceback."""
        job, end = held.context.job, held.end
        assert end is not None
        retried = end.state is JobState.READY
        level = logging.WARNING if retried else logging.ERROR
        if not _log.isEnabledFor(level):
            return
        fields = self._fields(held, job, "will be retried" if retried else "failed", held.seconds)
        fields |= {
            "error": end.error,
            "error_type": end.error_type,
            "category": end.category,
            "retry_at": None,
        }
        then = "it is not retried"
        if end.delay is not None:
            then = f"next retry in {end.delay:.1f} s"
            fields["retry_at"] = due = utc_text(self._clock.time() + end.delay)
            if due is not None:
                # With its offset: the clock of the log line may be UTC or local time.
                local = datetime.fromisoformat(due).astimezone().isoformat(" ", "seconds")
                then = f"next retry at {local}, in {end.delay:.1f} s"
        elif job.retries < job.max_retries:
            then = "it is not retried, because another attempt would fail, too"
        name, job_id, attempt, attempts = _named(held, job)
        _log.record(
            level,
            "%s failed after %.3f s: %s (job %s, attempt %d of %d; %s)",
            (name, held.seconds, _error(end.error_type, end.error), job_id, attempt, attempts, then),
            fields,
            None if end.traceback is None else shown_lines(end.traceback),
        )

    def _given_back(self, batch: Sequence[Held], debug: bool) -> None:
        """At INFO if an attempt had begun; a job that did not begin here is only a detail."""
        for held in batch:
            if not held.started and not debug:
                continue
            job, ended = held.context.job, held.ended
            error = None if ended is None else ended.error
            name, job_id, *_ = _named(held, job)
            _log.record(
                logging.INFO if held.started else logging.DEBUG,
                "%s was given back %s%s (job %s)",
                (
                    name,
                    f"after {held.seconds:.3f} s" if held.started else "before it began",
                    "" if error is None else f": {first_line(described(error))}",
                    job_id,
                ),
                self._fields(held, job, "given back", held.seconds if held.started else None),
            )

    def _lost(self, held: Held, error: BaseException | None) -> None:
        job = held.context.job
        name, job_id, *_ = _named(held, job)
        _log.record(
            logging.INFO,
            "%s lost its lease after %.3f s, and its result is discarded%s (job %s)",
            (name, held.seconds, "" if error is None else f": {first_line(described(error))}", job_id),
            self._fields(held, job, "lease lost", held.seconds),
        )

    def _fields(self, held: Held, job: Job, outcome: str, seconds: float | None) -> dict[str, Any]:
        return {
            "job_id": job.id,
            "task": held.task,
            "queue": job.queue,
            "attempt": job.retries + 1,
            "max_attempts": job.max_retries + 1,
            "worker": self._worker,
            "duration": seconds,
            "outcome": outcome,
            "correlation_id": job.correlation_id,
        }


def _named(held: Held, job: Job) -> tuple[str, str, int, int]:
    name = held.task or job.queue
    return (
        name if name.isprintable() else printable(name),
        job.id if job.id.isprintable() else printable(job.id),
        job.retries + 1,
        job.max_retries + 1,
    )


def _error(kind: str | None, text: str | None) -> str:
    line = first_line(text or "")
    return f"{kind}: {line}" if kind and line else kind or line or "without a reason"
