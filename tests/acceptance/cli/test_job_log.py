"""A task that fails: what the worker's log says of it, and what `jobs list` and `jobs show` do."""

from __future__ import annotations

import os
import pty
import re
import subprocess
from pathlib import Path

import pytest

from conquiet.jobs import JobStore, open_store
from tests.acceptance.cli.command import Shell

TASKS = """
import os
from conquiet import Conquiet
from conquiet.jobs import RetrySchedule

app = Conquiet(os.environ["CONQUIET_DSN"])
ONCE_MORE = RetrySchedule(max_retries=1, base_seconds=0.0)

def connect(dsn):
    raise ConnectionError(f"no answer from {dsn}")

@app.task(retry=ONCE_MORE)
def charge(order_id, note=""):
    connect("postgresql://app:hunter2@db/shop")

@app.task(retry=ONCE_MORE, queue="coroutines")
async def charge_async(order_id, note=""):
    connect("postgresql://app:hunter2@db/shop")

@app.task
def greet(name): ...
"""
COLOUR = re.compile(r"\x1b\[[0-9;]*3[0-7]m")
TRACE = (
    "Traceback (most recent call last):",
    'shop.py", line ',
    'connect("postgresql://app:***@db/shop")',
    "ConnectionError: no answer from postgresql://app:***@db/shop",
)


def made(shell: Shell, dsn: str) -> JobStore:
    (shell.folder / "shop.py").write_text(TASKS)
    shell.environment["CONQUIET_DSN"] = dsn
    return open_store(dsn)


@pytest.mark.parametrize(
    "isolation", ["sqlite-thread", "sqlite-process", "sqlite-async", "postgresql-process"]
)
def test_a_failure_is_seen_where_people_look(
    shell: Shell, tmp_path: Path, isolation: str, request: pytest.FixtureRequest
) -> None:
    name, isolation = isolation.split("-")
    dsn = f"sqlite:///{tmp_path}/jobs.db" if name == "sqlite" else request.getfixturevalue("postgres_dsn")
    task, queue = ("charge_async", "coroutines") if isolation == "async" else ("charge", "default")
    trace = [*TRACE, f", in {task}\n"]
    with made(shell, dsn) as store:
        store.enqueue(queue, {"task": task, "arguments": {"order_id": 4711}}, id="seven", max_retries=1)
    arguments = ("--queues", queue, "--isolation", isolation, "--name", "anna")
    for _ in range(2):  # the second time its retry is due for certain
        worked = shell("worker", "shop:app", "--until-idle", *arguments)
        assert worked.code == 0, worked.err
        if "ERROR" in worked.err:
            break
    said = worked.err
    line = next(line for line in said.splitlines() if " ERROR conquiet.jobs: " in line)
    assert re.match(r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} ERROR conquiet\.jobs: ", line)
    assert f"{task} failed after " in line
    assert (
        ": ConnectionError: no answer from postgresql://app:***@db/shop (job seven, attempt 2 of 2; " in line
    )
    below = said.partition(line)[2]
    assert [part for part in trace if part not in below] == []
    assert "hunter2" not in said
    assert "4711" not in said
    shown, as_json, listed = shell.each("jobs show seven", "jobs show seven --json", "jobs list")
    assert [part for part in trace if part not in shown.out] == []
    assert "attempts 1, 2:\n" in shown.out
    assert "\x1b" not in shown.out
    assert [attempt["error_type"] for attempt in as_json.json["attempts"]] == ["ConnectionError"] * 2
    assert "hunter2" not in shown.out + as_json.out + listed.out
    (row,) = (line for line in listed.out.splitlines() if "seven" in line)
    assert [
        part for part in (task, queue, "Failed", "2/2", "ConnectionError: no answer") if part not in row
    ] == []


def test_a_worker_tells_of_success_too(shell: Shell, tmp_path: Path) -> None:
    with made(shell, f"sqlite:///{tmp_path}/jobs.db") as store:
        store.enqueue("default", {"task": "greet", "arguments": {"name": "ann"}}, id="hello")
    worked = shell("worker", "shop:app", "--until-idle")
    assert re.search(
        r" INFO conquiet\.jobs: greet succeeded in \d\.\d{3} s \(job hello, attempt 1 of 4\)\n", worked.err
    )
    assert "ann" not in worked.err


def test_the_list_shows_the_newest_first_and_arguments_only_if_asked(shell: Shell, tmp_path: Path) -> None:
    with made(shell, f"sqlite:///{tmp_path}/jobs.db") as store:
        for number in range(3):
            arguments = {"name": f"customer {number}", "dsn": "redis://:hunter2@cache", "more": "x" * 100}
            store.enqueue("default", {"task": "greet", "arguments": arguments}, id=f"job-{number}")
        store.enqueue("default", {"customer": "a payload"}, id="bare", delay=7_200.0, correlation_id="c")
    newest, oldest, with_arguments, few, none, correlated = shell.each(
        "jobs list",
        "jobs list --oldest",
        "jobs list --args",
        "jobs list --newest --limit 1",
        "jobs list --older-than 1h",
        "jobs list --correlation-id c --newer-than 1h",
    )
    order = re.compile(r"job-\d|bare")
    assert order.findall(newest.out) == ["bare", "job-2", "job-1", "job-0"]
    assert order.findall(oldest.out) == ["job-0", "job-1", "job-2", "bare"]
    assert "customer" not in newest.out
    assert 'name="customer 1", dsn="redis://:***@cache", more="xxxxx' in with_arguments.out
    assert 'customer="a payload"' in with_arguments.out
    assert "…" in with_arguments.out
    assert "due in 2h" in newest.out or "due in 120m" in newest.out
    assert order.findall(few.out) == ["bare"]
    assert none.out == "no jobs\n"
    assert order.findall(correlated.out) == ["bare"]


def on_a_terminal(shell: Shell, *arguments: str, **variables: str) -> str:
    ours, theirs = pty.openpty()
    environment = {name: value for name, value in shell.environment.items() if name != "NO_COLOR"}
    process = subprocess.Popen(
        shell.command(*arguments),
        cwd=shell.folder,
        env=environment | {"TERM": "xterm-256color", "COLUMNS": "200"} | variables,
        stdout=theirs,
        stderr=theirs,
        stdin=theirs,
    )
    os.close(theirs)
    said = b""
    try:
        while part := os.read(ours, 65_536):
            said += part
    except OSError:  # the other end is closed: so Linux tells it
        pass
    os.close(ours)
    assert process.wait(60) == 0, said
    return said.decode()


def test_a_traceback_is_coloured_on_a_terminal_only(shell: Shell, tmp_path: Path) -> None:
    with made(shell, f"sqlite:///{tmp_path}/jobs.db") as store:
        store.enqueue("default", {"task": "charge", "arguments": {"order_id": 1}}, id="seven", max_retries=0)
    assert shell("worker", "shop:app", "--until-idle").code == 0
    coloured = on_a_terminal(shell, "jobs", "show", "seven")
    assert COLOUR.search(coloured)
    assert "ConnectionError: no answer from postgresql://app:***@db/shop" in coloured
    plain = on_a_terminal(shell, "jobs", "show", "seven", NO_COLOR="1")
    assert not COLOUR.search(plain)
    assert 'in charge\r\n    connect("postgresql://app:***@db/shop")\r\n' in plain
