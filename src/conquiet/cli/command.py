"""The command `conquiet`: its verbs, and the one place that turns errors into a line and an exit code."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Annotated

import typer

from conquiet import __version__
from conquiet.cli.exits import MEANINGS, Exit
from conquiet.cli.output import session
from conquiet.cli.verbs import (
    doctor,
    enqueue,
    jobs,
    metrics,
    migrate,
    pipeline,
    reconcile,
    service,
    stream,
    verify,
    worker,
)

__all__ = ["app", "run"]

_EXITS = "\n".join(["\b", "Exit codes:", *(f"  {code.value:<4} {text}" for code, text in MEANINGS.items())])
_PLACES = """\b
Settings, the first found: a flag, CONQUIET_…, DATABASE_URL or
REDIS_URL, conquiet.toml in this folder. Each verb has --json, --debug, --help."""

app = typer.Typer(
    help="Queues, leased jobs and reconciliation from the shell.",
    epilog=f"{_PLACES}\n\n{_EXITS}",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _verb in (doctor, migrate, enqueue, worker, metrics, verify):
    _verb.add_to(app)
app.add_typer(jobs.app, name="jobs")
app.add_typer(stream.app, name="stream")
service.add_to(reconcile.app)
app.add_typer(reconcile.app, name="reconcile")
app.add_typer(pipeline.app, name="pipeline")


def _print_version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_print_version),
    ] = False,
) -> None:
    """The options of `conquiet` itself."""


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. Never raises; only --debug shows a traceback."""
    session.begin()
    session.debug = bool(os.environ.get("CONQUIET_DEBUG"))
    try:
        code = app(args=arguments, prog_name="conquiet", standalone_mode=False)
    except typer.TyperException as error:
        return _usage(error)
    except typer.Abort:
        return session.failed(KeyboardInterrupt())
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - every error is reported in one line
        return session.failed(error)
    return code if isinstance(code, int) else Exit.DONE


def _usage(error: typer.TyperException) -> int:
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError":
        print(error.format_message())
        return Exit.USAGE
    where = f" (see: {context.command_path} --help)" if context else ""
    text = " ".join(error.format_message().split())
    session.complain(f"{text.rstrip('.')}{where}", Exit.USAGE, type(error).__name__)
    return Exit.USAGE
