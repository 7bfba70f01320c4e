"""The HTTP adapter against a real server on this machine."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from conquiet.clock import utc
from conquiet.errors import PlatformAuthError, PlatformError, PlatformRateLimitError
from conquiet.local import CircuitBreakerRegistry
from conquiet.reconcile import HttpAdapter, Metrics, Observation, PlatformFetcher
from conquiet.testing import ManualClock


class Platform:
    """A server that gives the answers a test sets, and records the requests."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, list[str]], dict[str, str]]] = []
        self.status = 200
        self.headers: dict[str, str] = {}
        self.body = b"{}"
        self.drip: float | None = None  # seconds between bytes
        platform = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                url = urlsplit(self.path)
                platform.requests.append((url.path, parse_qs(url.query), dict(self.headers.items())))
                self.send_response(platform.status)
                for name, value in platform.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(platform.body)))
                self.end_headers()
                if platform.drip is None:
                    self.wfile.write(platform.body)
                    return
                try:
                    for byte in platform.body:
                        self.wfile.write(bytes([byte]))
                        self.wfile.flush()
                        if platform.ended.wait(platform.drip):
                            return
                except OSError:
                    pass  # the adapter closed the connection, as intended

            def log_message(self, *_: Any) -> None:
                pass

        self.ended = threading.Event()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1/metrics"
        self._thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self._thread.start()

    def says(self, **answer: Any) -> None:
        self.body = json.dumps(answer).encode()

    def close(self) -> None:
        self.ended.set()
        self.server.shutdown()
        self._thread.join()
        self.server.server_close()


@pytest.fixture
def server() -> Iterator[Platform]:
    platform = Platform()
    yield platform
    platform.close()


def test_a_post_is_asked_for_by_a_parameter_that_cannot_leave_its_place(server: Platform) -> None:
    server.says(views=1200, clicks=31, conversions=2)
    adapter = HttpAdapter(server.url + "?page=1", token="secret-token")
    for post in ("p1", "../../admin", "a&post_id=b", "ünïcode %2e", "line\r\nX-Evil: 1"):
        assert adapter.fetch(post) == Observation(Metrics(1200, 31, 2))
        path, query, headers = server.requests[-1]
        assert (path, query) == ("/v1/metrics", {"page": ["1"], "post_id": [post]})
        assert headers["Authorization"] == "Bearer secret-token"
        assert "X-Evil" not in headers
    assert len(server.requests) == 5


def test_gaps_and_the_platforms_own_time_are_taken_over(server: Platform) -> None:
    adapter = HttpAdapter(server.url)
    server.says(views=None, clicks=31, observed_at="2026-01-31T12:00:00Z")
    noon = datetime(2026, 1, 31, 12, tzinfo=UTC)
    assert adapter.fetch("p1") == Observation(Metrics(None, 31, None), noon)
    server.says(views=2**63 - 1, clicks=0, conversions=0)
    assert adapter.fetch("p1").metrics == Metrics(2**63 - 1, 0, 0)
    assert "Authorization" not in server.requests[-1][2]


def test_an_unknown_post_is_no_error(server: Platform) -> None:
    server.status = 404
    assert HttpAdapter(server.url).fetch("p1") == Observation(Metrics(None, None, None))


@pytest.mark.parametrize(
    ("status", "headers", "error", "complaint"),
    [
        (401, {}, PlatformAuthError, "refused our credentials with 401"),
        (403, {}, PlatformAuthError, "refused our credentials with 403"),
        (429, {}, PlatformRateLimitError, "limits the rate of calls"),
        (500, {}, PlatformError, "answered with 500"),
        (503, {}, PlatformError, "answered with 503"),
        (503, {"Retry-After": "60"}, PlatformRateLimitError, "limits the rate of calls"),
        (302, {"Location": "http://169.254.169.254/"}, PlatformError, "answered with 302"),
        (204, {}, PlatformError, "answered with 204"),
    ],
)
def test_each_answer_has_its_error_and_is_asked_for_once(
    server: Platform, status: int, headers: dict[str, str], error: type[Exception], complaint: str
) -> None:
    server.status, server.headers, server.body = status, headers, b""
    with pytest.raises(error, match=complaint) as raised:
        HttpAdapter(server.url, token="secret-token").fetch("p1")
    assert type(raised.value) is error
    assert "secret" not in str(raised.value)
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("17", 17.0),
        ("Tue, 14 Nov 2023 22:13:50 GMT", 30.0),
        ("Mon, 13 Nov 2023 00:00:00 GMT", 0.0),
        ("soon", None),
    ],
)
def test_how_long_to_wait_is_understood(server: Platform, header: str, seconds: float | None) -> None:
    server.status, server.headers = 429, {"Retry-After": header}
    with pytest.raises(PlatformRateLimitError) as limited:
        HttpAdapter(server.url, clock=ManualClock(start=1_700_000_000.0)).fetch("p1")
    assert limited.value.retry_after == seconds


@pytest.mark.parametrize(
    "body",
    [
        b"", b"not json", b"[1, 2]", b'{"views": -1}', b'{"views": 1.5}', b'{"views": true}', b'{"clicks": "31"}',
        b'{"views": 9223372036854775808}', b'{"views": 1, "observed_at": "noon"}', b'{"views": 1, "observed_at": 5}',
        b'{"views": 1, "observed_at": "2026-01-31T12:00:00"}', b'{"views": 1}' + b" " * 1024 * 1024,
    ],
    ids=range(12),
)  # fmt: skip
def test_what_is_no_answer_is_an_error(server: Platform, body: bytes) -> None:
    server.body = body
    with pytest.raises(PlatformError, match="127.0.0.1 answered with"):
        HttpAdapter(server.url).fetch("p1")


def test_a_slow_drip_does_not_outlast_the_time_limit(server: Platform) -> None:
    server.says(views=1, clicks=1, conversions=1, padding="x" * 1_000)
    server.drip = 0.05  # each byte well within the limit, all of them a minute
    begun = time.monotonic()
    with pytest.raises(PlatformError, match="did not answer within 0.3 s"):
        HttpAdapter(server.url, timeout_seconds=0.3).fetch("p1")
    assert time.monotonic() - begun < 10


def test_silence_ends_at_the_time_limit() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts, and sends nothing
        adapter = HttpAdapter(f"http://127.0.0.1:{silent.getsockname()[1]}/", timeout_seconds=0.2)
        with pytest.raises(PlatformError, match="127.0.0.1 did not answer within 0.2 s"):
            adapter.fetch("p1")


def test_nobody_there_is_an_error_too() -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    with pytest.raises(PlatformError, match="did not answer properly: ConnectionRefusedError"):
        HttpAdapter(f"http://127.0.0.1:{port}/").fetch("p1")


def test_what_is_not_http_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")

        answering = threading.Thread(target=answer)
        answering.start()
        with pytest.raises(PlatformError, match="did not answer properly: BadStatusLine"):
            HttpAdapter(f"http://127.0.0.1:{server.getsockname()[1]}/").fetch("p1")
        answering.join()


@pytest.mark.clause("W-18")
def test_through_the_fetcher_a_broken_platform_is_left_alone(server: Platform) -> None:
    clock = ManualClock()
    fetcher = PlatformFetcher(
        {"x": HttpAdapter(server.url)}, breakers=CircuitBreakerRegistry(clock=clock), clock=clock
    )
    server.status = 500
    codes = [fetcher.fetch("x", "p1").error_code for _ in range(7)]
    assert codes == ["fetch_error"] * 5 + ["circuit_open"] * 2
    assert len(server.requests) == 5
    clock.advance(300)
    server.status = 200
    server.says(views=1, clicks=2, conversions=3)
    outcome = fetcher.fetch("x", "p1")
    assert (outcome.metrics, outcome.observed_at) == (Metrics(1, 2, 3), utc(clock.time()))
