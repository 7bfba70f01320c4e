"""How verbs are declared: each has --json, --debug and --config, and examples at the end of its help."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import typer
from typer.core import TyperCommand

from conquiet.cli.output import session

__all__ = ["DsnFlag", "GroupFlag", "RedisFlag", "group", "verb"]

F = TypeVar("F", bound=Callable[..., Any])

DsnFlag = Annotated[
    str | None,
    typer.Option(
        "--dsn", help="The job store (CONQUIET_DSN, DATABASE_URL).", metavar="DSN", show_default=False
    ),
]
RedisFlag = Annotated[
    str | None,
    typer.Option(
        "--redis-url",
        help="The Redis server (CONQUIET_REDIS_URL, REDIS_URL).",
        metavar="URL",
        show_default=False,
    ),
]
GroupFlag = Annotated[
    str | None,
    typer.Option("--group", help="The consumer group (CONQUIET_GROUP).", metavar="NAME", show_default=False),
]


def group(help: str) -> typer.Typer:
    return typer.Typer(
        help=help,
        no_args_is_help=True,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )


def verb(of: typer.Typer, name: str, *examples: str) -> Callable[[F], F]:
    """Declare a function as a verb."""
    epilog = "\n".join(["\b", "Examples:", *(f"  conquiet {example}" for example in examples)])
    return of.command(
        name, cls=_Verb, epilog=epilog, context_settings={"help_option_names": ["-h", "--help"]}
    )


class _Verb(TyperCommand):
    def __init__(self, name: str | None, *, params: list[Any] | None = None, **rest: Any) -> None:
        super().__init__(name, params=[*(params or ()), *_shared_options()], **rest)


def _shared_options() -> list[Any]:
    """Typer makes them from `_options`. They act through callbacks, so that verbs need no parameters for them."""
    carrier = typer.Typer(add_completion=False)
    carrier.command()(_options)
    options = [option for option in typer.main.get_command(carrier).params if option.name != "help"]
    for option in options:
        option.expose_value = False
    return options


def _set_json(value: bool) -> None:
    session.json = session.json or value


def _set_debug(value: bool) -> None:
    session.debug = session.debug or value


def _set_config(value: str | None) -> None:
    session.settings.file = value or session.settings.file


def _options(
    json: Annotated[
        bool, typer.Option("--json", help="Print the result as JSON.", callback=_set_json, is_eager=True)
    ] = False,
    debug: Annotated[
        bool,
        typer.Option("--debug", help="Show the traceback of an error.", callback=_set_debug, is_eager=True),
    ] = False,
    config: Annotated[
        str | None,
        typer.Option(
            "--config",
            help="Settings file, instead of ./conquiet.toml (CONQUIET_CONFIG).",
            metavar="FILE",
            callback=_set_config,
            is_eager=True,
            show_default=False,
        ),
    ] = None,
) -> None:
    """The options of every verb."""
