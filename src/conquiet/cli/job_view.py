"""Jobs as the command shows them: a line of a list, the details of one, the tracebacks of its attempts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from conquiet.cli.durations import short_duration
from conquiet.cli.output import printable
from conquiet.redaction import first_line, redact

if TYPE_CHECKING:
    from rich.text import Text

    from conquiet.jobs import Attempt, Job

__all__ = ["attempt_rows", "field_rows", "list_columns", "list_row", "plain_job", "tracebacks"]

_MOST_ARGUMENTS = 60  # characters of a job's arguments in a list
_SEARCHED = 1_000  # of them are searched for passwords


def plain_job(job: Job) -> dict[str, Any]:
    """Without the token of the lease: with it anyone could settle the job instead of its worker."""
    shown = job.plain()
    if shown["lease"] is not None:
        del shown["lease"]["token"]
    return shown


def list_columns(with_arguments: bool) -> tuple[str, ...]:
    return (
        *("id", "task", "queue", "state", "age", "attempts", "next"),
        *(("arguments",) if with_arguments else ()),
        "error",
    )


def list_row(job: Job, with_arguments: bool) -> tuple[Any, ...]:
    now = datetime.now(UTC)
    return (
        *(job.id, _task(job), job.queue, job.state.value),
        short_duration((now - job.enqueued_at).total_seconds()),
        f"{job.retries + (job.state.value != 'Ready')}/{job.max_retries + 1}",
        _next(job, now),
        *((_arguments(job),) if with_arguments else ()),
        _error(job),
    )


def _task(job: Job) -> str:
    task = job.payload.get("task")
    return task if isinstance(task, str) else ""


def _arguments(job: Job) -> str:
    """The arguments of a task, or the payload of another job, in short."""
    arguments = job.payload.get("arguments") if _task(job) else job.payload
    if isinstance(arguments, dict):
        text = ", ".join(f"{name}={_json(value)}" for name, value in arguments.items())
    else:
        text = _json(arguments)
    text = redact(text[:_SEARCHED])
    return text if len(text) <= _MOST_ARGUMENTS else f"{text[: _MOST_ARGUMENTS - 1]}…"


def _next(job: Job, now: datetime) -> str:
    if job.lease is not None:
        return f"at {job.lease.worker} until {job.lease.expires_at:%H:%M:%S}"
    if job.retry_at is not None and job.retry_at > now:
        return f"due in {short_duration((job.retry_at - now).total_seconds())}"
    return ""


def _error(job: Job) -> str | None:
    if job.error is None:
        return None
    kind = job.attempts[-1].error_type if job.attempts else None
    return first_line(f"{kind}: {job.error}" if kind and job.attempts[-1].error_message else job.error)


def field_rows(shown: dict[str, Any]) -> list[tuple[str, str]]:
    return [(name, _text(value)) for name, value in shown.items() if value is not None]


def attempt_rows(attempts: Sequence[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [
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


def tracebacks(attempts: Sequence[Attempt]) -> list[Text]:
    """The traceback of each attempt that has one; what several have in common is shown once."""
    texts: dict[str, list[int]] = {}
    for attempt in attempts:
        if attempt.traceback:
            texts.setdefault(attempt.traceback, []).append(attempt.number)
    return [_traceback(text, numbers) for text, numbers in texts.items()]


def _traceback(text: str, numbers: list[int]) -> Text:
    from rich.text import Text

    # Colours only: they are left out in a pipe, and with NO_COLOR.
    which = f"attempt{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"
    shown = Text(f"{which}:\n", style="")
    for line in printable(text).split("\n"):
        if line.startswith(("  File ", "    ")):
            style = "cyan" if line.startswith("  File ") else ""
        else:
            style = "" if line.startswith(("Traceback ", "During ", "The above ")) else "red"
        shown.append(f"{line}\n", style)
    return shown


def _text(value: Any) -> str:
    return _json(value) if isinstance(value, dict) else str(value)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
