"""`conquiet worker`: runs the tasks of an app until it is stopped."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Annotated, Any, NoReturn

import typer

from conquiet.cli.declaration import verb
from conquiet.cli.durations import seconds_of
from conquiet.cli.log_lines import log_to_stderr
from conquiet.cli.output import session
from conquiet.cli.processes import member, run_processes
from conquiet.cli.settings import APP, CONCURRENCY, DSN, QUEUES, Found
from conquiet.errors import AbandonedThreadsError, SettingsError
from conquiet.observe import DIRECTORY, Exposition, SummedMetrics, exposition, join_sum
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
    prefetch: Annotated[
        int | None,
        typer.Option(
            "--prefetch",
            min=0,
            show_default=False,
            help="How many jobs to hold in advance; default: as many as will begin within 0.2 s, none if jobs are long.",
        ),
    ] = None,
    isolation: Annotated[
        str | None,
        typer.Option(
            "--isolation",
            metavar="|".join(_ISOLATIONS),
            autocompletion=_isolations,
            show_default=False,
            help="Where tasks run; default: coroutines in one event loop, functions on threads.",
        ),
    ] = None,
    processes: Annotated[
        int,
        typer.Option(
            "--processes",
            min=1,
            help="How many processes to run, each with this concurrency; one that dies is replaced.",
        ),
    ] = 1,
    until_idle: Annotated[bool, typer.Option("--until-idle", help="Exit when no job is due.")] = False,
    shutdown_timeout: Annotated[
        float,
        typer.Option(
            "--shutdown-timeout", help="Seconds that running tasks have to end after a stop.", min=0
        ),
    ] = 30.0,
    unknown_after: Annotated[
        str,
        typer.Option(
            "--unknown-after",
            metavar="DURATION",
            help="How long jobs are given back whose task is not here, for workers of another version; then they fail.",
        ),
    ] = "15m",
    name: Annotated[
        str | None,
        typer.Option("--name", help="The name in leases; default: host and process id.", show_default=False),
    ] = None,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            "--metrics-port",
            help="Serve the metrics on this port; of several processes, their sum.",
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
    second signal it no longer waits for running tasks. When 16 tasks hang on their threads past their time limits, the
    command starts itself anew, with the same process id.

    With --processes the command starts so many workers, passes signals on to them, replaces those that are killed, and
    ends with the sum of their counts. They end if it is killed itself.
    """
    one = member()
    if one is not None:
        name = f"{name}-{one.number}" if name else None
        if metrics_port is not None:
            metrics_port = None  # the parent serves the sum
            join_sum(one.number)  # before the app can create metrics of its own
    found = _app(str(session.settings.need(APP, app)))
    named = session.settings.find(QUEUES, queues)
    places = session.settings.find(CONCURRENCY, concurrency)
    workers = found.worker(
        None if named is None else parsed_queues(str(named.value), named.origin),
        concurrency=8 if places is None else places.value,
        prefetch=prefetch,
        isolation=isolation,
        shutdown_timeout=shutdown_timeout,
        unknown_after=seconds_of("--unknown-after", unknown_after),
        name=name,
        location=session.settings.used[APP.key].value,
        ends_when_hung=True,
        handle_signals=True,
    )
    log_to_stderr()
    if one is None:
        session.note(f"{', '.join(found.tasks)} on {redact_dsn(found.dsn)}; SIGTERM or Ctrl-C stops")
    if one is None and processes > 1:
        found.close()
        counts, status = _run_processes(processes, metrics_host, metrics_port)
        if status:
            raise typer.Exit(status)
    else:
        watched = one.stopped_with_parent(workers.stop) if one else nullcontext()
        with found, _metrics(metrics_host, metrics_port), _stopped_by_ctrl_c(workers), watched:
            try:
                counts = asdict(workers.run_until_idle() if until_idle else workers.run())
            except AbandonedThreadsError as error:
                _replace_process(error)
    if one is not None:
        one.report(counts)
        return
    session.result(counts, ", ".join(f"{what} {count}" for what, count in counts.items()))


def _replace_process(error: AbandonedThreadsError) -> NoReturn:
    """Start this command anew in the same process: nothing else ends the threads of tasks that hang.

    What was running has ended or was cut off, as at a stop; everything else has been given back.
    """
    logging.getLogger("conquiet.cli").error("this worker replaces itself by a fresh process: %s", error)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - no shell is wanted


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


def _metrics(host: str, port: int | None, own: Exposition = exposition) -> AbstractContextManager[Any]:
    if port is None:
        return nullcontext()
    from conquiet.cli.verbs.metrics import MetricsServer

    server = MetricsServer(host, port, flag="--metrics-port", own=own)
    session.note(f"serving {server.url}")
    return server


def _run_processes(count: int, host: str, port: int | None) -> tuple[dict[str, int], int]:
    if port is None:
        return run_processes(count)
    with TemporaryDirectory(prefix="conquiet-metrics-") as directory:
        summed = SummedMetrics(directory, count)
        with _metrics(host, port, summed.exposition):
            return run_processes(count, {DIRECTORY: directory}, summed.ended)


@contextmanager
def _stopped_by_ctrl_c(workers: Any) -> Iterator[None]:
    before = signal.getsignal(signal.SIGINT)

    def stop(number: int, frame: FrameType | None) -> None:
        workers.stop()
        # A handler of the app's own is called, too; Python's own would raise KeyboardInterrupt.
        if callable(before) and before not in (signal.default_int_handler, signal.SIG_IGN, signal.SIG_DFL):
            before(number, frame)

    signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
