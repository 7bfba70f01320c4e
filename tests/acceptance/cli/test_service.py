"""reconcile serve: the service as a user starts it, once and twice."""

from __future__ import annotations

import json
import signal
import socket
import time
from contextlib import ExitStack
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from conquiet.embedded import PostgresServer, RedisServer
from tests.acceptance.cli.command import Shell

REPORT = {"affiliate_id": "ann", "platform": "photos", "post_id": "p1"} | {
    f"claimed_{name}": 1 for name in ("views", "clicks", "conversions")
}


@pytest.fixture
def platforms(tmp_path: Path) -> str:
    path = tmp_path / "platforms.toml"
    path.write_text('[photos]\nadapter = "simulated"\nseed = 7\n')
    return str(path)


def post(url: str) -> int:
    request = Request(f"{url}/reports", json.dumps(REPORT).encode(), method="POST")
    try:
        with urlopen(request) as answer:
            return int(answer.status)
    except HTTPError as error:
        with error:
            return error.code


@pytest.mark.clause("W-32")
def test_two_that_share_accept_as_much_as_one(shell: Shell, tmp_path: Path, platforms: str) -> None:
    with RedisServer() as redis, ExitStack() as stack:
        arguments = ("--platforms", platforms, "--dsn", f"sqlite:///{tmp_path}/reports.db", "--port", "0")
        sharing = ("--shared", "--redis-url", redis.url, "--json")
        processes = [
            stack.enter_context(shell.start("reconcile", "serve", *arguments, *sharing)) for _ in range(2)
        ]
        urls = [json.loads(process.stdout.readline())["url"] for process in processes]
        begun = time.monotonic()
        answers = [post(urls[number % 2]) for number in range(60)]
        passed = time.monotonic() - begun
        assert set(answers) <= {202, 429}
        assert 20 <= answers.count(202) <= 21 + passed  # one more each second; two rates would be twice that
        with urlopen(f"{urls[0]}/health") as health:
            assert json.load(health)["status"] == "ok"
        for process in processes:
            process.send_signal(signal.SIGTERM)
        for process in processes:
            assert process.wait(60) == 0


HALF = b"POST /reports HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"


def half_sent(url: str, request: bytes = HALF) -> socket.socket:
    """A connection whose request does not end: by default a report whose rest does not come."""
    host, port = url.removeprefix("http://").split(":")
    line = socket.create_connection((host, int(port)))
    line.sendall(request)
    with urlopen(f"{url}/metrics") as answer:  # by then the server has read it
        assert answer.status == 200
    return line


@pytest.mark.parametrize("signals", [1, 2])
def test_a_half_sent_report_does_not_keep_it(
    shell: Shell, tmp_path: Path, platforms: str, signals: int
) -> None:
    limit = ("--stop-seconds", "600" if signals == 2 else "20")
    arguments = ("--platforms", platforms, "--dsn", f"sqlite:///{tmp_path}/reports.db", "--port", "0")
    with shell.start("reconcile", "serve", *arguments, *limit, "--json") as process:
        url = json.loads(process.stdout.readline())["url"]
        with half_sent(url):
            process.send_signal(signal.SIGTERM)
            if signals == 2:
                while is_listening(url):
                    pass
                process.send_signal(signal.SIGTERM)
            assert process.wait(60) == (0 if signals == 1 else -signal.SIGTERM)


def is_listening(url: str) -> bool:
    host, port = url.removeprefix("http://").split(":")
    try:
        socket.create_connection((host, int(port))).close()
    except ConnectionError:
        return False
    return True


def test_it_ends_while_the_database_hangs(shell: Shell, platforms: str) -> None:
    with PostgresServer() as server:
        arguments = ("--platforms", platforms, "--dsn", server.dsn, "--port", "0", "--stop-seconds", "2")
        with shell.start("reconcile", "serve", *arguments, "--json") as process:
            url = json.loads(process.stdout.readline())["url"]
            assert post(url) == 202
            server.pause()
            try:
                waiting = half_sent(url, b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
                with waiting:
                    process.send_signal(signal.SIGTERM)
                    assert process.wait(60) in (0, 1)  # 1: the request was cut off
            finally:
                server.resume()


def test_what_is_wrong_is_named(shell: Shell, tmp_path: Path, platforms: str) -> None:
    files = {
        "none": "",
        "text": "photos = 1",
        "broken": "[photos",
        "adapter": '[photos]\nadapter = "imagined"',
        "token": '[photos]\nadapter = "http"\nbase_url = "http://localhost/"\ntoken_env = "NO_SUCH_TOKEN"',
        "tokens": '[photos]\nadapter = "http"\nbase_url = "http://localhost/"\ntoken = "a"\ntoken_env = "B"',
        "nameless": '[""]\nadapter = "simulated"',
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    dsn = f"--dsn sqlite:///{tmp_path}/reports.db"
    results = shell.each(
        f"reconcile serve --platforms {tmp_path}/missing {dsn}",
        *(f"reconcile serve --platforms {tmp_path}/{name} {dsn}" for name in files),
        f"reconcile serve --platforms {platforms}",
        f"reconcile serve --platforms {platforms} {dsn} --shared",
        f"reconcile serve --platforms {platforms} {dsn} --shared --redis-url http://localhost",
        f"reconcile serve --platforms {platforms} {dsn} --low-trust-delay -1",
        f"reconcile serve --platforms {platforms} {dsn} --low-trust-below 3",
        f"reconcile serve --platforms {platforms} {dsn} --host 256.1.1.1",
    )
    expected = (
        "cannot be read",
        "names no platform",
        "must be a table",
        "is not TOML",
        "there is no adapter 'imagined'",
        "NO_SUCH_TOKEN, which is not set",
        "both token and token_env",
        "must be a text that is not empty",
        "no job store is given",
        "no Redis server is given",
        "is not a usable Redis URL",
        "low_trust_delay_seconds",
        "low_trust_below must be a score from 0 to 1",
        "cannot listen on 256.1.1.1",
    )
    for done, part in zip(results, expected, strict=True):
        assert part in done.err, done
        assert done.code == 2, done
        assert len(done.err.splitlines()) == 1
