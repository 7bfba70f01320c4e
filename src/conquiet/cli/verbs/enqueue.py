"""`conquiet enqueue`: adds jobs to a store, or messages to a Redis stream."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Annotated, Any

import typer

from conquiet.cli.declaration import DsnFlag, RedisFlag, verb
from conquiet.cli.output import session
from conquiet.errors import ConquietError, PayloadError, SettingsError

__all__ = ["add_to"]

_AT_ONCE = 1_000

Payloads = Iterator[dict[str, Any]]


def add_to(app: typer.Typer) -> None:
    verb(
        app,
        "enqueue",
        """enqueue emails '{"to": "ann@example.com"}'""",
        """enqueue emails '{"to": "bob@example.com"}' --delay 60 --priority 1 --id welcome-bob""",
        """enqueue emails - < payloads.jsonl""",
        """enqueue emails '{"to": "cas@example.com"}' --task send""",
        """enqueue orders '{"order": 1}' --stream""",
    )(enqueue)


def enqueue(
    queue: Annotated[str, typer.Argument(help="The queue; with --stream, the stream.", metavar="QUEUE")],
    payload: Annotated[
        str,
        typer.Argument(
            help="A JSON object; - reads one from each line of standard input.", metavar="PAYLOAD"
        ),
    ],
    stream: Annotated[
        bool, typer.Option("--stream", help="Enqueue into a Redis stream, not into the job store.")
    ] = False,
    task: Annotated[
        str | None,
        typer.Option(
            "--task",
            metavar="NAME",
            show_default=False,
            help="A task of the app that serves the queue; PAYLOAD contains its arguments.",
        ),
    ] = None,
    id: Annotated[
        str | None,
        typer.Option("--id", help="The id of the job; an existing one is refused.", show_default=False),
    ] = None,
    delay: Annotated[
        float | None,
        typer.Option("--delay", help="Seconds until the job may run.", min=0, show_default=False),
    ] = None,
    priority: Annotated[
        int | None,
        typer.Option("--priority", help="A lower number runs first (default: 5).", show_default=False),
    ] = None,
    max_retries: Annotated[
        int | None,
        typer.Option(
            "--max-retries",
            help="How often it is retried after a failure (default: 3).",
            min=0,
            show_default=False,
        ),
    ] = None,
    correlation_id: Annotated[
        str | None, typer.Option("--correlation-id", help="Passed to the handler.", show_default=False)
    ] = None,
    dsn: DsnFlag = None,
    redis_url: RedisFlag = None,
) -> None:
    """Add work: a job, or a message."""
    job = {
        "id": id,
        "delay": delay,
        "priority": priority,
        "max_retries": max_retries,
        "correlation_id": correlation_id,
    }
    given = {name: value for name, value in job.items() if value is not None}
    if stream and (given or task):
        names = [*given, *(["task"] if task else [])]
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in names)
        raise SettingsError(f"a Redis stream has no {flags}: omit that, or omit --stream")
    if payload == "-" and id is not None:
        raise SettingsError("--id names one job, and - reads many: omit one of them")
    payloads = _lines() if payload == "-" else iter([_decoded(payload, "the payload")])
    if task is not None:
        payloads = _calls(task, payloads)
    ids = _into_stream(queue, payloads, redis_url) if stream else _into_store(queue, payloads, given, dsn)
    kind = "message" if stream else "job"
    text = f"{kind} {ids[0]}" if len(ids) == 1 else f"{len(ids)} {kind}s"
    session.result({"stream" if stream else "queue": queue, "ids": ids}, f"enqueued {text}")


def _into_store(queue: str, payloads: Payloads, given: dict[str, Any], dsn: str | None) -> list[str]:
    from conquiet.cli.stores import opened_store
    from conquiet.jobs import NewJob

    with opened_store(dsn) as store:
        return _in_parts(
            payloads, lambda some: store.enqueue_many(queue, [NewJob(payload, **given) for payload in some])
        )


def _into_stream(stream: str, payloads: Payloads, redis_url: str | None) -> list[str]:
    from conquiet.cli.redis_view import RedisLook

    with RedisLook(redis_url) as look:
        return _in_parts(payloads, lambda some: look.enqueue_many(stream, some))


def _in_parts(payloads: Payloads, enqueue: Callable[[list[dict[str, Any]]], list[str]]) -> list[str]:
    """Enqueue in parts, so that memory is bounded for any number of lines. Each part is enqueued entirely or not at all."""
    ids: list[str] = []
    try:
        while some := list(islice(payloads, _AT_ONCE)):
            ids += enqueue(some)
    except ConquietError as error:
        if ids:
            session.note(f"conquiet: the first {len(ids)} were enqueued before this:")
            error.add_note(f"the first {len(ids)} were enqueued before this")
        raise
    return ids


def _calls(task: str, payloads: Payloads) -> Payloads:
    """The payloads of calls of `task`, as the app itself stores them."""
    from conquiet.app import task_payload

    return (task_payload(task, arguments) for arguments in payloads)


def _lines() -> Payloads:
    for number, line in enumerate(sys.stdin.buffer, 1):
        if line.strip():
            yield _decoded(line, f"line {number} of standard input")


def _decoded(text: str | bytes, what: str) -> dict[str, Any]:
    from conquiet.payload import decode

    try:
        return decode(text)
    except PayloadError as error:
        raise PayloadError(
            f'{what} is refused: {error}. It must be a JSON object, such as {{"to": "ann"}}'
        ) from None
