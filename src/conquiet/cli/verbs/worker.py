"""`conquiet worker`: runs the tasks of an app until it is stopped."""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict
from typing import Annotated, Any

import typer

from conquiet.cli.declaration import verb
from conquiet.cli.output import session
from conquiet.cli.settings import APP, CONCURRENCY, DSN, QUEUES, Found
from conquiet.errors import SettingsError
from conquiet.redaction import redact_dsn

__all__ = ["add_to", "parsed_queues"]

_ISOLATIONS = ("thread", "async", "process")


def _isolations(incomplete: str) -> list[str]:
    return [name for name in _ISOLATIONS if name.startswith(incomplete)]


def add_to(app: typer.Typer) -> None:
    verb(
        app,
        "worker",
        "worker shop.tasks:app",
        "worker shop.tasks:app --queues emails:10,reports --concurrency 4",
        "worker shop.tasks:app --until-idle --json",
    )(worker)


def worker(
    app: Annotated[
        str | None,
        typer.Argument(
            help="The app, as package.module:name (CONQUIET_APP).", metavar="APP", show_default=False
        ),
    ] = None,
    queues: Annotated[
        str | None,
        typer.Option(
            "--queues",
            metavar="A:10,B",
            show_default=False,
            help="The queues, default: all; a number gives a queue its own concurrency (CONQUIET_QUEUES).",
        ),
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option(
            "--concurrency",
            min=1,
            show_default=False,
            help="How many tasks run at a time, over all queues without a number; default: 8 (CONQUIET_CONCURRENCY).",
        ),
    ] = None,
    isolation: Annotated[
        str | None,
        typer.Option(
            "--isolation",
            metavar="|".join(_ISOLATIONS),
            autocompletion=_isolations,
            show_default=False,
            help="Where tasks run; default: async if all are coroutines, else thread.",
        ),
    ] = None,
    until_idle: Annotated[bool, typer.Option("--until-idle", help="Exit when no job is due.")] = False,
    shutdown_timeout: Annotated[
        float,
        typer.Option(
            "--shutdown-timeout", help="Seconds that running tasks have to end after a stop.", min=0
        ),
    ] = 30.0,
    name: Annotated[
        str | None,
        typer.Option("--name", help="The name in leases; default: host and process id.", show_default=False),
    ] = None,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            "--metrics-port",
            help="Serve the metrics of this process on this port.",
            min=0,
            max=65535,
            show_default=False,
        ),
    ] = None,
    metrics_host: Annotated[
        str, typer.Option("--metrics-host", help="The address for the metrics.")
    ] = "127.0.0.1",
) -> None:
    """Run the tasks of an app.

    SIGTERM or Ctrl-C: nothing more is claimed, running tasks are finished, the other claimed jobs are released. After a
    second signal it no longer waits for running tasks.
    """
    found = _app(str(session.settings.need(APP, app)))
    named = session.settings.find(QUEUES, queues)
    places = session.settings.find(CONCURRENCY, concurrency)
    workers = found.worker(
        None if named is None else parsed_queues(str(named.value), named.origin),
        concurrency=8 if places is None else places.value,
        isolation=isolation,
        shutdown_timeout=shutdown_timeout,
        name=name,
        location=session.settings.used[APP.key].value,
    )
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.INFO)
    session.note(f"{', '.join(found.tasks)} on {redact_dsn(found.dsn)}; SIGTERM or Ctrl-C stops")
    with found, _metrics(metrics_host, metrics_port), _stopped_by_ctrl_c(workers):
        counts = asdict(workers.run_until_idle() if until_idle else workers.run())
    session.result(counts, ", ".join(f"{what} {count}" for what, count in counts.items()))


def parsed_queues(text: str, origin: str) -> dict[str, int | None]:
    """`a:10,b` as {"a": 10, "b": None}."""
    queues: dict[str, int | None] = {}
    for part in text.split(","):
        name, colon, number = part.strip().rpartition(":")
        if not colon:
            name, number = number, ""
        if not name or name in queues or (colon and not (number.isdecimal() and int(number) > 0)):
            raise SettingsError(
                f"{origin} is written as emails:10,reports: each queue once; {part.strip()!r} is wrong"
            )
        queues[name] = int(number) if colon else None
    return queues


def _app(text: str) -> Any:
    from conquiet.app import Conquiet
    from conquiet.cli.targets import target

    found = target(text, "the app")
    if not isinstance(found, Conquiet):
        raise SettingsError(
            f"{text} is not an app but a {type(found).__qualname__}: it must be a conquiet.Conquiet"
        )
    session.settings.used[DSN.key] = Found(found.dsn, f"the DSN of {text}")
    if found.dsn.startswith("memory://"):
        raise SettingsError(
            f"{text} uses memory://, into which no other process can enqueue: give the app {DSN.example}, or a server"
        )
    return found


def _metrics(host: str, port: int | None) -> AbstractContextManager[Any]:
    if port is None:
        return nullcontext()
    from conquiet.cli.verbs.metrics import MetricsServer

    server = MetricsServer(host, port, flag="--metrics-port")
    session.note(f"serving {server.url}")
    return server


@contextmanager
def _stopped_by_ctrl_c(workers: Any) -> Iterator[None]:
    before = signal.signal(signal.SIGINT, lambda *_: workers.stop())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
