"""`conquiet jobs`: shows leased jobs, and retries or discards those that failed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from conquiet.cli.declaration import DsnFlag, group, verb
from conquiet.cli.durations import seconds_of
from conquiet.cli.exits import Exit
from conquiet.cli.output import session
from conquiet.errors import JobError, JobNotFoundError, SettingsError, StoreUnavailableError

if TYPE_CHECKING:
    from conquiet.jobs import JobStore

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


@verb(app, "list", "jobs list --state Failed", "jobs list --task send --newer-than 2h --args")
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
    task: Annotated[
        str | None, typer.Option("--task", help="Only jobs of this task.", metavar="NAME", show_default=False)
    ] = None,
    correlation_id: Annotated[
        str | None,
        typer.Option(
            "--correlation-id", help="Only jobs with this correlation id.", metavar="ID", show_default=False
        ),
    ] = None,
    newest: Annotated[
        bool, typer.Option("--newest/--oldest", help="The newest first, or the oldest.")
    ] = True,
    older_than: Annotated[
        str | None,
        typer.Option(
            "--older-than",
            help="Only jobs enqueued at least so long ago.",
            metavar="DURATION",
            show_default=False,
        ),
    ] = None,
    newer_than: Annotated[
        str | None,
        typer.Option(
            "--newer-than", help="Only jobs enqueued since then.", metavar="DURATION", show_default=False
        ),
    ] = None,
    arguments: Annotated[
        bool, typer.Option("--args", help="Show the arguments, in short. They may be private.")
    ] = False,
    after: Annotated[
        int | None,
        typer.Option(
            "--after",
            help="Continue a list: the number that it ended with.",
            metavar="N",
            min=0,
            show_default=False,
        ),
    ] = None,
) -> None:
    """List jobs, the newest first: which task, how old, how many attempts, and the last error."""
    from conquiet.cli.job_view import list_columns, list_row, plain_job
    from conquiet.cli.stores import check_queue, opened_store
    from conquiet.jobs import JobState

    known = {name.lower(): name for name in _STATES}
    if state is not None and state.lower() not in known:
        raise SettingsError(f"--state is one of {', '.join(_STATES)}, not {state!r}")
    wanted = None if state is None else JobState(known[state.lower()])
    with opened_store(dsn) as store:
        check_queue(store, queue)
        found = store.list(
            state=wanted,
            queue=queue,
            task=task,
            correlation_id=correlation_id,
            newest_first=newest,
            limit=limit,
            after=after,
            older_than=None if older_than is None else seconds_of("--older-than", older_than),
            newer_than=None if newer_than is None else seconds_of("--newer-than", newer_than),
        )
    table = session.table(list_columns(arguments), [list_row(job, arguments) for job in found])
    session.result([plain_job(job) for job in found], table if found else "no jobs")
    if found.next is not None:
        session.note(f"there may be more: --after {found.next}")


@verb(app, "show", "jobs show welcome-bob", "jobs show welcome-bob --json")
def show(id: Annotated[str, typer.Argument(help="The job.", metavar="ID")], dsn: DsnFlag = None) -> None:
    """Show one job: its payload, how each attempt ended, and where it failed."""
    from conquiet.cli.job_view import attempt_rows, field_rows, plain_job, tracebacks
    from conquiet.cli.stores import opened_store

    with opened_store(dsn) as store:
        job = store.get(id)
    if job is None:
        raise JobNotFoundError(f"there is no job {id!r}: conquiet jobs list shows the existing jobs")
    shown = plain_job(job)
    attempts = shown.pop("attempts")
    texts: list[Any] = [session.table(("field", "value"), field_rows(shown))]
    if attempts:
        columns = ("attempt", "worker", "began", "ended", "outcome", "error")
        texts += [session.table(columns, attempt_rows(attempts)), *tracebacks(job.attempts)]
    session.result({**shown, "attempts": attempts}, *texts)


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

    page = store.list(state=JobState.FAILED, queue=queue, limit=_PAGE)
    yield from (job.id for job in page)
    while page.next is not None:
        page = store.list(state=JobState.FAILED, queue=queue, limit=_PAGE, after=page.next)
        yield from (job.id for job in page)
