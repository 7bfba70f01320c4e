"""The corpus against the command: as arguments and enqueued lines, and as jobs and streams that it shows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import redis

from conquiet.jobs import JobState, NewJob, open_store
from tests.abuse.corpus import corpus, deep, huge
from tests.abuse.database import tables

REFUSED = 2


def conquiet(*arguments: str | bytes, stdin: bytes = b"") -> tuple[int, str, str]:
    """The exit code and the output, which must not move a terminal's cursor."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "conquiet", *arguments],
        input=stdin,
        capture_output=True,
        timeout=100,
        env={
            name: value for name, value in os.environ.items() if "CONQUIET" not in name and "_URL" not in name
        },
    )
    out, err = done.stdout.decode(), done.stderr.decode()
    shown = err if "--json" in arguments else out + err  # JSON is for programs, which need it unchanged
    assert shown.replace("\n", "").isprintable()
    assert "Traceback" not in err
    return done.returncode, out, err


@pytest.fixture
def dsn(folder: Path) -> str:
    dsn = f"sqlite:///{folder}/jobs.db?synchronous=NORMAL"
    open_store(dsn).close()
    return dsn


@pytest.mark.parametrize(
    "payload",
    [
        b"'; DROP TABLE conquiet_jobs; --",
        b'{"value":"\xff"}',
        b"\x1b[2J{0.__class__}%n",
        deep(10_000)[:100_000],
    ],
    ids=lambda payload: ascii(payload)[:20],
)
def test_a_hostile_argument_is_refused_in_one_line(dsn: str, payload: bytes) -> None:
    code, out, err = conquiet("enqueue", "--dsn", dsn, "--", "q", payload)
    assert (code, out, len(err.splitlines())) == (REFUSED, "", 1)
    assert err.startswith("conquiet: the payload is refused: ")
    with open_store(dsn) as store:
        assert store.list() == []


def test_hostile_lines_are_enqueued_or_refused_by_their_number(dsn: str) -> None:
    before = tables(dsn)
    payloads = [{"value": one.text} for one in corpus() if one.is_unicode]
    lines = b"".join(json.dumps(payload).encode() + b"\n" for payload in payloads)
    code, out, _ = conquiet("enqueue", "--dsn", dsn, "q", "-", stdin=lines)
    assert (code, out) == (0, f"enqueued {len(payloads)} jobs\n")
    for bad in (b'{"value":"\xff"}\n', huge(), deep()):
        code, _, err = conquiet("enqueue", "--dsn", dsn, "q", "-", stdin=b"{}\n" + bad)
        assert code == REFUSED
        assert "line 2 of standard input is refused" in err or "over the limit of 8388608" in err
    with open_store(dsn) as store:
        assert [job.payload for job in store.list(limit=10_000)] == payloads
    assert tables(dsn) == before


def test_what_it_shows_of_jobs_is_text_and_never_an_order_to_the_terminal(dsn: str) -> None:
    names = [one.text for one in corpus() if one.is_name]
    with open_store(dsn) as store:
        for name in names[::3]:
            store.enqueue(name, {name: name}, id=name, max_retries=0)
        for job in store.claim(names[::3], limit=1_000, worker=names[-1], lease_ttl=60.0):
            store.nack(job, job.id)
        assert store.stats()[names[0]].failed == 1
        assert len(store.list(state=JobState.FAILED, limit=1_000)) == len(names[::3])
    for arguments in (("list", "--limit", "1000"), ("stats",), ("show", "--", names[0])):
        code, out, err = conquiet("jobs", arguments[0], "--dsn", dsn, *arguments[1:])
        assert (code, err) == (0, "")
        assert out
    code, out, _ = conquiet("jobs", "list", "--dsn", dsn, "--limit", "1000", "--oldest", "--json")
    assert [job["id"] for job in json.loads(out)] == names[::3]
    _, _, err = conquiet("jobs", "show", "--dsn", dsn, "--", b"\x1b[31m\xff")
    assert err.startswith("conquiet: ")


def test_what_it_shows_of_streams_is_text_whatever_strangers_wrote(redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as client:
        for name in (b"orders", b"\xff\x1b[31m"):
            client.xgroup_create(name, b"group\xff", "0", mkstream=True)
            for one in corpus():
                client.xadd(name, {b"data": one.raw})
            client.xgroup_create(name, b"group", "0")
            for group in (b"group", b"group\xff"):
                client.xreadgroup(group, b"consumer\xff\x1b[31m", {name: ">"}, count=10)
    for arguments in (
        ("stats", "orders"),
        ("tail", "orders", "--count", "1000"),
        ("stats", "nowhere"),
        ("stats", "orders", "--group", "nobody"),
    ):
        code, out, err = conquiet("stream", *arguments, "--redis-url", redis_url)
        assert code == (1 if "nowhere" in arguments or "nobody" in arguments else 0), err
        assert out or err


def test_names_that_no_store_takes_are_refused(dsn: str) -> None:
    for name in (b"\xff\x1b[31m", b"a" * 256):
        code, _, err = conquiet("enqueue", "--dsn", dsn, "--", name, b"{}")
        assert (code, len(err.splitlines())) == (REFUSED, 1)
    with open_store(dsn) as store:
        store.enqueue_many("q", [NewJob({})])
        assert len(store.list()) == 1
