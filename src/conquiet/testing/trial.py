"""What tests ask an app: which calls were queued."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from conquiet.app.arguments import ARGUMENTS, task_name
from conquiet.app.task import Task
from conquiet.jobs import Job, JobStore

__all__ = ["assert_found", "matching"]

_PAGE = 1_000
_MOST_SHOWN = 20


def matching(store: JobStore, task: Task[..., Any], arguments: Mapping[str, Any]) -> list[Job]:
    """The jobs of a task, in whatever state, whose arguments include these."""
    return [job for job in _jobs_of(store, task) if _includes(job, arguments)]


def assert_found(store: JobStore, task: Task[..., Any], arguments: Mapping[str, Any]) -> list[Job]:
    found = matching(store, task, arguments)
    if not found:
        there = Counter(_shown(task, job.payload.get(ARGUMENTS)) for job in _jobs_of(store, task))
        lines = [f"\n  {call}" + (f" × {count}" if count > 1 else "") for call, count in there.items()]
        more = f"\n  … and {len(lines) - _MOST_SHOWN} others" if len(lines) > _MOST_SHOWN else ""
        raise AssertionError(
            f"{_shown(task, arguments) if arguments else task.name} was not enqueued. Of this task there "
            + (f"are:{''.join(lines[:_MOST_SHOWN])}{more}" if lines else "are no jobs")
        )
    return found


def _jobs_of(store: JobStore, task: Task[..., Any]) -> Iterator[Job]:
    offset = 0
    while jobs := store.list(queue=task.queue, limit=_PAGE, offset=offset):
        yield from (job for job in jobs if task_name(job.payload) == task.name)
        offset += len(jobs)


def _includes(job: Job, arguments: Mapping[str, Any]) -> bool:
    stored = job.payload.get(ARGUMENTS)
    if not isinstance(stored, dict):
        return False
    return all(name in stored and stored[name] == _plain(value) for name, value in arguments.items())


def _plain(value: Any) -> Any:
    """As it comes back from JSON: the tuple of *args is a list there."""
    return list(value) if isinstance(value, tuple) else value


def _shown(task: Task[..., Any], arguments: Any) -> str:
    items = arguments.items() if isinstance(arguments, Mapping) else ()
    return f"{task.name}({', '.join(f'{name}={_plain(value)!r}' for name, value in items)})"
