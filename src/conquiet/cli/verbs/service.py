"""`conquiet reconcile serve`: the reconciliation of reports over HTTP, in one process or several."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import tomllib
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from conquiet.cli.declaration import RedisFlag, verb
from conquiet.cli.log_lines import log_to_stderr
from conquiet.cli.output import session
from conquiet.cli.settings import DSN, REDIS_URL
from conquiet.errors import MissingDependencyError, SettingsError
from conquiet.signals import stop_on_sigterm

if TYPE_CHECKING:
    import uvicorn

    from conquiet.reconcile import ReconciliationService

__all__ = ["add_to"]

_log = logging.getLogger("conquiet.reconcile")

_TOKEN_VARIABLE = "token_env"  # noqa: S105 - the key that names a variable, not a secret


def add_to(app: typer.Typer) -> None:
    verb(
        app,
        "serve",
        "reconcile serve --platforms platforms.toml --dsn sqlite:///reports.db --port 8000",
        "reconcile serve --platforms platforms.toml --shared --redis-url redis://localhost:6379/0",
        "reconcile serve --platforms platforms.toml --low-trust-delay 600",
    )(serve)


def serve(
    platforms: Annotated[
        str, typer.Option("--platforms", help="A TOML file with a table for each platform.", metavar="FILE")
    ],
    host: Annotated[str, typer.Option("--host", help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", help="The port to listen on; 0: a free one.", min=0, max=65535)
    ] = 8000,
    workers: Annotated[
        int, typer.Option("--workers", help="How many attempts are made at a time.", min=1)
    ] = 2,
    shared: Annotated[
        bool,
        typer.Option(
            "--shared",
            help="Share breakers, rates per affiliate and the pace of platforms with the other processes "
            "that use the Redis server --redis-url.",
        ),
    ] = False,
    low_trust_below: Annotated[
        float,
        typer.Option(
            "--low-trust-below", help="The score, from 0 to 1, below which an affiliate has little trust."
        ),
    ] = 0.30,
    low_trust_delay: Annotated[
        float,
        typer.Option(
            "--low-trust-delay",
            help="Seconds that reports of such affiliates wait; 0: none.",
            metavar="SECONDS",
        ),
    ] = 0.0,
    stop_seconds: Annotated[
        float,
        typer.Option(
            "--stop-seconds",
            help="It ends at most so long after SIGTERM: keep it below the grace period of what stops it.",
            metavar="SECONDS",
            min=1,
        ),
    ] = 25.0,
    dsn: Annotated[
        str | None,
        typer.Option(
            "--dsn",
            help="The database of reports (CONQUIET_DSN, DATABASE_URL).",
            metavar="DSN",
            show_default=False,
        ),
    ] = None,
    redis_url: RedisFlag = None,
) -> None:
    """Take in reports over HTTP and compare them with the platforms, until SIGTERM.

    A table of the platforms file has the adapter and its settings, for example adapter = "http", base_url = "https://…",
    token_env = "CLIPS_TOKEN" (the variable that holds the token). It has no authentication: put a proxy in front.

    On SIGTERM it accepts no more reports, begins no attempt, and finishes those that run, for at most --stop-seconds. What is
    left waits in the database. A second SIGTERM ends it immediately.
    """
    found = _settings(Path(platforms))
    database = str(session.settings.need(DSN, dsn))
    redis = str(session.settings.need(REDIS_URL, redis_url)) if shared else None
    try:
        import uvicorn  # noqa: F401 - refused before anything is opened
    except ImportError as error:
        raise MissingDependencyError(
            'reconcile serve needs a web server: pip install "conquiet[reconcile,web]"'
        ) from error
    from conquiet.reconcile import DEFAULT_RULES, PlatformFetcher, ReconciliationService

    intake = replace(
        DEFAULT_RULES.intake, low_trust_below=low_trust_below, low_trust_delay_seconds=low_trust_delay
    )
    service = ReconciliationService(
        database,
        PlatformFetcher.from_settings(found),
        workers=workers,
        rules=replace(DEFAULT_RULES, intake=intake),
        shared=redis,
        stop_seconds=0.9 * stop_seconds,  # the rest is for what closes after it
    )
    log_to_stderr()
    with (
        _listening(host, port) as listening,
        stop_on_sigterm(lambda: None),
    ):  # uvicorn raises it again at its end
        url = f"http://{host}:{listening.getsockname()[1]}"
        session.result({"url": url}, f"serving {url}")
        _server(service, stop_seconds).run(sockets=[listening])


def _server(service: ReconciliationService, stop_seconds: float) -> uvicorn.Server:
    import uvicorn

    def give_up() -> None:
        _log.warning("not everything has ended within %g s of the signal: ended now", stop_seconds)
        logging.shutdown()
        os._exit(1)

    class Server(uvicorn.Server):
        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            if self.should_exit:  # the second signal
                signal.signal(sig, signal.SIG_DFL)
                os.kill(os.getpid(), sig)
            super().handle_exit(sig, frame)
            limit = threading.Timer(stop_seconds, give_up)
            limit.daemon = True
            limit.start()

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            service.request_stop()  # not only when all connections are closed
            await super().shutdown(sockets)

    return Server(
        uvicorn.Config(
            service.app,
            log_level="warning",
            log_config=None,
            # Requests take milliseconds. A client that sends no more must not take the time of running attempts.
            timeout_graceful_shutdown=max(1, min(5, int(stop_seconds / 2))),
        )
    )


def _settings(path: Path) -> dict[str, dict[str, Any]]:
    """The platforms of the file, with the tokens of the variables that it names."""
    try:
        written = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"--platforms {path} cannot be read: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"--platforms {path} is not TOML: {error}") from None
    if not written:
        raise SettingsError(f"--platforms {path} names no platform: write a table for each, such as [clips]")
    found = {}
    for name, table in written.items():
        if not isinstance(table, dict):
            raise SettingsError(
                f'{path}: {name} must be a table: [{name}], then adapter = "http" and its settings'
            )
        own = {key: value for key, value in table.items() if key != _TOKEN_VARIABLE}
        if (variable := table.get(_TOKEN_VARIABLE)) is not None:
            if "token" in table:
                raise SettingsError(f"{path}: {name} has both token and {_TOKEN_VARIABLE}: write one of them")
            token = os.environ.get(str(variable))
            if not token:
                raise SettingsError(f"{path}: the token of {name} is to be in {variable}, which is not set")
            own["token"] = token
        found[name] = own
    return found


def _listening(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port))
    except (OSError, UnicodeError) as error:
        raise SettingsError(f"cannot listen on {host}:{port}: {error}") from None
