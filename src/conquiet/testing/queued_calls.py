"""The queued calls of a task."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from conquiet.app import Task
from conquiet.jobs import Job

__all__ = ["assert_enqueued", "enqueued"]

_PAGE = 1_000
_MOST_SHOWN = 20


def enqueued(task: Task[..., Any], /, *args: Any, **kwargs: Any) -> list[Job]:
    """The jobs of a task, in any state, whose arguments include these."""
    return _matching(task, task.parameters.partial(args, kwargs))


def assert_enqueued(task: Task[..., Any], /, *args: Any, **kwargs: Any) -> list[Job]:
    """Like `enqueued`, but raises AssertionError with the existing calls if there are none."""
    arguments = task.parameters.partial(args, kwargs)
    found = _matching(task, arguments)
    if not found:
        there = Counter(_shown(task, stored) for _, stored in _calls(task))
        lines = [f"\n  {call}" + (f" × {count}" if count > 1 else "") for call, count in there.items()]
        more = f"\n  … and {len(lines) - _MOST_SHOWN} others" if len(lines) > _MOST_SHOWN else ""
        raise AssertionError(
            f"{_shown(task, arguments) if arguments else task.name} was not enqueued. Of this task there "
            + (f"are:{''.join(lines[:_MOST_SHOWN])}{more}" if lines else "are no jobs")
        )
    return found


def _matching(task: Task[..., Any], arguments: Mapping[str, Any]) -> list[Job]:
    return [
        job
        for job, stored in _calls(task)
        if all(name in stored and stored[name] == _plain(value) for name, value in arguments.items())
    ]


def _calls(task: Task[..., Any]) -> Iterator[tuple[Job, Mapping[str, Any]]]:
    """The jobs of the task, each with its arguments."""
    page = task.app.store.list(queue=task.queue, limit=_PAGE)
    while True:
        for job in page:
            stored = task.arguments_of(job)
            if stored is not None:
                yield job, stored
        if page.next is None:
            return
        page = task.app.store.list(queue=task.queue, limit=_PAGE, after=page.next)


def _plain(value: Any) -> Any:
    """`value` as it comes back from JSON: the tuple of *args becomes a list."""
    return list(value) if isinstance(value, tuple) else value


def _shown(task: Task[..., Any], arguments: Mapping[str, Any]) -> str:
    return f"{task.name}({', '.join(f'{name}={_plain(value)!r}' for name, value in arguments.items())})"
