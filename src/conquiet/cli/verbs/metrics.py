"""`conquiet metrics`: the size of queues and streams, for Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from conquiet.cli.declaration import DsnFlag, RedisFlag, verb
from conquiet.cli.exits import Exit
from conquiet.cli.output import session
from conquiet.cli.settings import DSN, METRICS_PORT, REDIS_URL
from conquiet.errors import ConquietError, MissingDependencyError, SettingsError
from conquiet.observe import Exposition, exposition

if TYPE_CHECKING:
    from conquiet.jobs import JobStore

__all__ = ["MetricsServer", "add_to"]

_PORT = 9464


def add_to(app: typer.Typer) -> None:
    verb(
        app,
        "metrics",
        "metrics --dsn sqlite:///jobs.db --port 9464",
        "metrics --redis-url redis://localhost:6379/0 --stream orders --once",
    )(metrics)


def metrics(
    stream: Annotated[
        list[str] | None,
        typer.Option("--stream", help="A Redis stream; may be repeated.", metavar="NAME", show_default=False),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            help=f"The port to listen on (CONQUIET_METRICS_PORT; default: {_PORT}).",
            min=0,
            max=65535,
            show_default=False,
        ),
    ] = None,
    host: Annotated[str, typer.Option("--host", help="The address to listen on.")] = "127.0.0.1",
    once: Annotated[bool, typer.Option("--once", help="Print the metrics once and exit.")] = False,
    dsn: DsnFlag = None,
    redis_url: RedisFlag = None,
) -> None:
    """Serve the size of queues and streams, for Prometheus.

    At http://HOST:PORT/metrics: jobs by queue and state, streams by length, lag and pending. The values are read at
    each request. A worker serves its own metrics: worker --metrics-port.
    """
    with closing(_Gauges(dsn, redis_url, stream or [])) as gauges:
        _show(gauges, host, port, once)


def _show(gauges: _Gauges, host: str, port: int | None, once: bool) -> None:
    if once:
        samples = list(gauges.collected())
        session.result([sample._asdict() for sample in samples], _text(samples).rstrip())
        raise typer.Exit(gauges.worst)
    found = session.settings.find(METRICS_PORT, port)
    with MetricsServer(
        host, _PORT if found is None else int(found.value), lambda: _text(gauges.collected())
    ) as server:
        session.result({"url": server.url}, f"serving {server.url}")
        server.wait()


class Sample(NamedTuple):
    name: str
    help: str
    labels: dict[str, str]
    value: float


class _Gauges:
    """Reads the current values from the store and the streams; counts nothing itself."""

    def __init__(self, dsn: str | None, redis_url: str | None, streams: list[str]) -> None:
        self._dsn, self._redis_url, self._streams = dsn, redis_url, streams
        self.worst = Exit.DONE
        self._open = ExitStack()
        self._opening = Lock()
        self._store: JobStore | None = None
        self._has_store = session.settings.find(DSN, dsn) is not None
        if streams:
            session.settings.need(REDIS_URL, redis_url)
        elif redis_url is not None:
            raise SettingsError("no stream is named: give --stream NAME, once for each stream")
        if not self._has_store and not streams:
            session.settings.need(DSN, dsn)

    def collected(self) -> Iterator[Sample]:
        """All available samples. A source that does not answer is reported as a metric and does not hide the others."""
        if self._has_store:
            yield from self._guarded("jobs", self._jobs)
        for stream in self._streams:
            yield from self._guarded(f"stream {stream}", lambda stream=stream: self._stream(stream))  # type: ignore[misc]

    def _guarded(self, source: str, look: Callable[[], list[Sample]]) -> Iterator[Sample]:
        help = "Whether the source could be read"
        try:
            samples = look()
        except ConquietError as error:
            self.worst = session.failed(error)
            yield Sample("conquiet_source_up", help, {"source": source}, 0)
            return
        yield Sample("conquiet_source_up", help, {"source": source}, 1)
        yield from samples

    def _jobs(self) -> list[Sample]:
        found = self._opened_store().stats()
        states = ("ready", "delayed", "in_flight", "expired", "failed", "succeeded")
        return [
            Sample(
                "conquiet_jobs", "Jobs in the store", {"queue": queue, "state": state}, getattr(counts, state)
            )
            for queue, counts in found.items()
            for state in states
        ]

    def _opened_store(self) -> JobStore:
        """Return the store, which stays open: to connect takes longer than to count."""
        from conquiet.cli.stores import opened_store

        with self._opening:
            if self._store is None:
                self._store = self._open.enter_context(opened_store(self._dsn))
            return self._store

    def close(self) -> None:
        self._open.close()

    def _stream(self, stream: str) -> list[Sample]:
        from conquiet.cli.redis_view import RedisLook

        label = {"stream": stream}
        with RedisLook(self._redis_url) as look:
            groups = [look.backlog(stream, name) for name in look.groups(stream)]
            samples = [Sample("conquiet_stream_length", "Entries in the stream", label, look.length(stream))]
        for found in groups:
            labels = {**label, "group": found["group"]}
            samples.append(
                Sample("conquiet_stream_pending", "Delivered, not acknowledged", labels, found["pending"])
            )
            if found["lag"] is not None:
                samples.append(Sample("conquiet_stream_lag", "Not delivered yet", labels, found["lag"]))
            idle = (found["oldest_pending_idle_ms"] or 0) / 1000
            samples.append(
                Sample(
                    "conquiet_stream_oldest_pending_seconds", "Idle time of the oldest pending", labels, idle
                )
            )
        return samples


def _text(samples: Any) -> str:
    """The samples in the text format of Prometheus, which requires each family in one block."""
    families: dict[str, list[Sample]] = {}
    for sample in samples:
        families.setdefault(sample.name, []).append(sample)
    lines: list[str] = []
    for name, members in families.items():
        lines += [f"# HELP {name} {members[0].help}", f"# TYPE {name} gauge"]
        for sample in members:
            labels = ",".join(f'{key}="{_escaped(value)}"' for key, value in sample.labels.items())
            lines.append(f"{name}{{{labels}}} {sample.value}")
    return "\n".join(lines) + "\n"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class MetricsServer:
    """Serves http://host:port/metrics on its own thread until the block ends. Port 0 chooses a free port."""

    def __init__(
        self,
        host: str,
        port: int,
        more: Callable[[], str] | None = None,
        flag: str = METRICS_PORT.flag,
        own: Exposition = exposition,
    ) -> None:
        if more is None and own() is None:
            raise MissingDependencyError('metrics need prometheus_client: pip install "conquiet[prometheus]"')
        try:
            self._server = ThreadingHTTPServer((host, port), _handler(own, more))
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise SettingsError(f"cannot listen on {host}:{port} ({reason}): choose another {flag}") from None
        self._server.daemon_threads = True
        self.url = f"http://{host}:{self._server.server_address[1]}/metrics"
        self._thread = Thread(target=self._server.serve_forever, name="conquiet metrics", daemon=True)

    def __enter__(self) -> MetricsServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def wait(self) -> None:
        """Wait for SIGTERM (or Ctrl-C, which raises)."""
        from conquiet.clock import Parker
        from conquiet.signals import stop_on_sigterm

        parker = Parker()
        with stop_on_sigterm(parker.wake):
            parker.park(None)


def _handler(own: Exposition, more: Callable[[], str] | None) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path.partition("?")[0] != "/metrics":
                self.send_error(404, "only /metrics is served")
                return
            body, kind = own() or (b"", "text/plain; version=0.0.4; charset=utf-8")
            body += more().encode() if more else b""
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: Any) -> None:
            """Log nothing: a line for each request would hide everything else."""

    return Handler
