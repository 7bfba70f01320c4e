"""The corpus as a platform's answer, and as the post that is asked for: adapters raise only what they may raise."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from conquiet.errors import PlatformError, PlatformRateLimitError
from conquiet.local import CircuitBreakerRegistry
from conquiet.reconcile import HttpAdapter, Metrics, Observation, PlatformFetcher
from tests.abuse.corpus import corpus, deep, huge
from tests.answering import Answering


class Platform(Answering):
    """Sends `answer` to every request, unchanged, and closes the connection."""

    def __init__(self) -> None:
        super().__init__()
        self.answer = b""
        self.asked = b""
        self.adapter = HttpAdapter(f"http://127.0.0.1:{self.port}/v1", timeout_seconds=30.0)

    def says(self, body: bytes, *headers: bytes, status: bytes = b"200 OK") -> None:
        lines = [b"HTTP/1.1 " + status, *headers, b"Content-Length: %d" % len(body), b"", body]
        self.answer = b"\r\n".join(lines)

    def outcome(self, post_id: str = "p1") -> Observation | PlatformError:
        """The outcome of a fetch. Anything but an observation or an error that adapters may raise is raised again."""
        try:
            return self.adapter.fetch(post_id)
        except PlatformError as error:
            return error

    def serve(self, line: socket.socket) -> None:
        self.asked = line.recv(65_536)
        line.sendall(self.answer)


@pytest.fixture
def platform() -> Iterator[Platform]:
    with Platform() as platform:
        yield platform


def test_every_input_as_a_body(platform: Platform) -> None:
    nothing = Observation(Metrics(None, None, None))
    for one in corpus():
        platform.says(one.raw)
        found = platform.outcome()
        if one.payload is None:
            assert isinstance(found, PlatformError), one.name
            assert str(found).isprintable()
        else:  # an object without views
            assert found == nothing, one.name
    for body in (huge(2), deep()):
        platform.says(body)
        assert isinstance(platform.outcome(), PlatformError)
    platform.says(b'{"views":7}')
    assert platform.outcome() == Observation(Metrics(7, None, None))


def test_every_input_as_a_count_and_as_a_time(platform: Platform) -> None:
    for one in corpus():
        for field in ("views", "observed_at"):
            for value in (one.text, [one.text], {one.text: one.text}):
                platform.says(json.dumps({field: value}).encode())
                assert isinstance(platform.outcome(), PlatformError), (one.name, field)


def test_every_input_in_the_place_of_the_whole_answer_and_of_its_parts(platform: Platform) -> None:
    for one in corpus():
        for answer in (
            one.raw,
            b"HTTP/1.1 " + one.raw + b"\r\n\r\n",
            b"HTTP/1.1 200 " + one.raw + b"\r\n\r\n",
            b"HTTP/1.1 200 OK\r\n" + one.raw + b"\r\n\r\n{",
            b"HTTP/1.1 200 OK\r\nContent-Length: " + one.raw + b"\r\n\r\n{",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + one.raw,
        ):
            platform.answer = answer
            found = platform.outcome()
            assert isinstance(found, PlatformError), (one.name, answer[:80])
            assert str(found).isprintable()


def test_every_input_as_how_long_to_wait(platform: Platform) -> None:
    dates = ["Mon, 01 Jan 99999999999999999999 00:00:00 GMT", "1 Jan 2020 00:00:00 +99999999999999999"]
    dates += ["Fri, 31 Dec 9999 23:59:59 -2359", "Mon, 01 Jan 0001 00:00:00 +2359", "1e400", "9" * 400]
    for raw in (*(one.raw for one in corpus()), *(date.encode() for date in dates)):
        platform.says(b"", b"Retry-After: " + raw, status=b"429 Slow Down")
        found = platform.outcome()
        assert isinstance(found, PlatformError)
        if isinstance(found, PlatformRateLimitError) and found.retry_after is not None:
            assert 0 <= found.retry_after < 1e12


def test_every_input_as_a_post(platform: Platform) -> None:
    platform.says(b'{"views":7}')
    for one in corpus():
        found = platform.outcome(one.text)
        if not one.is_unicode:
            assert isinstance(found, PlatformError)
            assert "a lone surrogate" in str(found)
        elif len(one.text) < 10_000:  # with more, the platform here answers before it has read everything
            assert found == Observation(Metrics(7, None, None)), one.name
            assert platform.asked.split(b"\r\n")[0].count(b" ") == 2


@pytest.mark.parametrize("time", ["0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59"])
def test_times_at_the_ends_of_the_calendar_go_into_no_database(platform: Platform, time: str) -> None:
    fetcher = PlatformFetcher({"x": platform.adapter}, breakers=CircuitBreakerRegistry())
    platform.says(json.dumps({"views": 7, "observed_at": time}).encode())
    outcome = fetcher.fetch("x", "p1")
    assert (outcome.error_code, outcome.metrics) == ("fetch_error", Metrics(None, None, None))
    assert outcome.observed_at.astimezone(UTC) <= datetime.now(UTC)


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("ünïcode", b"/%C3%BCn%C3%AFcode"),
        ("a b", b"/a%20b"),
        ("a%20b", b"/a%20b"),
        ("a\x01b", b"/a%01b"),
        ("a?q=ü&r=%25", b"/a?q=%C3%BC&r=%25"),
    ],
)
def test_a_path_that_a_request_cannot_hold_goes_encoded(platform: Platform, path: str, asked: bytes) -> None:
    base = f"http://127.0.0.1:{platform._listening.getsockname()[1]}/"
    platform.says(b'{"views":7}')
    assert HttpAdapter(base + path).fetch("p1").metrics.views == 7
    before = b"&" if b"?" in asked else b"?"
    assert platform.asked.split(b" ")[1] == asked + before + b"post_id=p1"
