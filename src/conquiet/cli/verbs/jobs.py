"""`conquiet jobs`: shows leased jobs, and retries or discards those that failed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from conquiet.cli.declaration import DsnFlag, group, verb
from conquiet.cli.exits import Exit
from conquiet.cli.output import session
from conquiet.errors import JobError, JobNotFoundError, SettingsError, StoreUnavailableError

if TYPE_CHECKING:
    from conquiet.jobs import Job, JobStore

__all__ = ["app"]

_STATES = ("Ready", "InFlight", "Failed", "Succeeded")
_PAGE = 1_000

app = group("Show jobs; retry or discard those that failed.")

Ids = Annotated[list[str] | None, typer.Argument(help="Job ids.", metavar="ID...", show_default=False)]
Queue = Annotated[
    str | None, typer.Option("--queue", help="Only this queue.", metavar="NAME", show_default=False)
]


def _states(given: str) -> list[str]:
    return [state for state in _STATES if state.lower().startswith(given.lower())]


@verb(app, "list", "jobs list --state Failed", "jobs list --queue emails --limit 20 --json")
def list_jobs(
    dsn: DsnFlag = None,
    state: Annotated[
        str | None,
        typer.Option(
            "--state",
            help=f"One of {', '.join(_STATES)}.",
            autocompletion=_states,
            metavar="STATE",
            show_default=False,
        ),
    ] = None,
    queue: Queue = None,
    limit: Annotated[int, typer.Option("--limit", help="How many at most.", min=1)] = 100,
    offset: Annotated[int, typer.Option("--offset", help="How many to skip first.", min=0)] = 0,
) -> None:
    """List jobs, in the order in which they were enqueued."""
    from conquiet.cli.stores import check_queue, opened_store
    from conquiet.jobs import JobState

    known = {name.lower(): name for name in _STATES}
    if state is not None and state.lower() not in known:
        raise SettingsError(f"--state is one of {', '.join(_STATES)}, not {state!r}")
    wanted = None if state is None else JobState(known[state.lower()])
    with opened_store(dsn) as store:
        check_queue(store, queue)
        found = store.list(state=wanted, queue=queue, limit=limit, offset=offset)
    rows = [
        (
            job.id,
            job.queue,
            job.state.value,
            job.priority,
            f"{job.retries}/{job.max_retries}",
            _when(job),
            job.error,
        )
        for job in found
    ]
    columns = ("id", "queue", "state", "priority", "retries", "when", "error")
    session.result([_shown(job) for job in found], session.table(columns, rows) if rows else "no jobs")


@verb(app, "show", "jobs show welcome-bob", "jobs show welcome-bob --json")
def show(id: Annotated[str, typer.Argument(help="The job.", metavar="ID")], dsn: DsnFlag = None) -> None:
    """Show one job: its payload, and how each attempt ended."""
    from conquiet.cli.stores import opened_store

    with opened_store(dsn) as store:
        job = store.get(id)
    if job is None:
        raise JobNotFoundError(f"there is no job {id!r}: conquiet jobs list shows the existing jobs")
    shown = _shown(job)
    attempts = shown.pop("attempts")
    fields = [(name, _text(value)) for name, value in shown.items() if value is not None]
    tables: list[Any] = [session.table(("field", "value"), fields)]
    if attempts:
        columns = ("attempt", "worker", "began", "ended", "outcome", "error")
        rows = [
            (
                attempt["number"],
                attempt["worker"],
                attempt["started_at"],
                attempt["ended_at"],
                attempt["outcome"],
                ": ".join(filter(None, (attempt["error_type"], attempt["error_message"]))),
            )
            for attempt in attempts
        ]
        tables.append(session.table(columns, rows))
    session.result({**shown, "attempts": attempts}, *tables)


@verb(app, "retry", "jobs retry welcome-bob", "jobs retry --failed --queue emails")
def retry(
    ids: Ids = None,
    failed: Annotated[bool, typer.Option("--failed", help="All Failed jobs.")] = False,
    queue: Queue = None,
    dsn: DsnFlag = None,
) -> None:
    """Make Failed jobs Ready again, with all their retries."""
    _decide("retried", lambda store, job_id: store.retry(job_id), ids, failed, queue, dsn)


@verb(app, "discard", "jobs discard welcome-bob", "jobs discard --failed --queue emails --yes")
def discard(
    ids: Ids = None,
    failed: Annotated[bool, typer.Option("--failed", help="All Failed jobs.")] = False,
    queue: Queue = None,
    yes: Annotated[bool, typer.Option("--yes", help="Confirm --failed.")] = False,
    dsn: DsnFlag = None,
) -> None:
    """Remove Ready or Failed jobs permanently."""
    if failed and not yes:
        raise SettingsError("--failed removes all Failed jobs permanently: add --yes to confirm")
    _decide("discarded", lambda store, job_id: store.discard(job_id), ids, failed, queue, dsn)


@verb(app, "stats", "jobs stats", "jobs stats --queue emails --json")
def stats(queue: Queue = None, dsn: DsnFlag = None) -> None:
    """Count the jobs of each queue by state."""
    from conquiet.cli.stores import check_queue, opened_store

    with opened_store(dsn) as store:
        check_queue(store, queue)
        found = store.stats(queue)
    columns = ("ready", "delayed", "in_flight", "expired", "failed", "succeeded")
    data = {name: {column: getattr(counts, column) for column in columns} for name, counts in found.items()}
    rows = [(name, *counts.values()) for name, counts in data.items()]
    session.result(data, session.table(("queue", *columns), rows) if rows else "no jobs")


def _decide(
    done: str,
    decide: Callable[[JobStore, str], object],
    ids: list[str] | None,
    failed: bool,
    queue: str | None,
    dsn: str | None,
) -> None:
    """Each job is handled separately: a refusal does not affect the others."""
    from conquiet.cli.stores import check_queue, opened_store

    if bool(ids) == failed:
        raise SettingsError("name the jobs by their ids, or give --failed for all Failed jobs")
    if queue is not None and not failed:
        raise SettingsError("--queue is used with --failed; jobs named by their ids need no queue")
    decided: list[str] = []
    refused: list[dict[str, str]] = []
    with opened_store(dsn) as store:
        check_queue(store, queue)
        for job_id in ids or list(_failed(store, queue)):
            try:
                decide(store, job_id)
                decided.append(job_id)
            except StoreUnavailableError:
                raise
            except JobError as error:
                refused.append({"id": job_id, "error": str(error)})
    texts = [f"{done}: {len(decided)}"] if decided or not refused else []
    session.result({done: decided, "refused": refused}, *texts)
    if refused:
        for refusal in refused:
            session.note(f"conquiet: {refusal['error']}")
        raise typer.Exit(Exit.REFUSED)


def _failed(store: JobStore, queue: str | None) -> Iterator[str]:
    from conquiet.jobs import JobState

    offset = 0
    while page := store.list(state=JobState.FAILED, queue=queue, limit=_PAGE, offset=offset):
        yield from (job.id for job in page)
        offset += len(page)


def _shown(job: Job) -> dict[str, Any]:
    """Without the token of the lease: with it anyone could settle the job instead of its worker."""
    shown = job.plain()
    if shown["lease"] is not None:
        del shown["lease"]["token"]
    return shown


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else str(value)


def _when(job: Job) -> str:
    now = datetime.now(UTC)
    if job.lease is not None:
        return f"leased by {job.lease.worker} until {job.lease.expires_at:%H:%M:%S}"
    if job.retry_at is not None and job.retry_at > now:
        return f"due {job.retry_at:%Y-%m-%d %H:%M:%S}"
    return f"since {job.enqueued_at:%Y-%m-%d %H:%M:%S}"
