"""worker --processes: so many workers, replaced when they are killed, stopped with their parent."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from conquiet.jobs import JobState, open_store
from tests.acceptance.cli.command import Shell

TASKS = """
import os, time
from pathlib import Path
from conquiet import Conquiet

app = Conquiet("sqlite:///jobs.db")

@app.task
def note(name):
    Path(f"{name} by {os.getpid()}").touch()

@app.task
def hold(name):
    Path(f"{name} by {os.getpid()}").touch()
    while not Path("go on").exists():
        time.sleep(0.01)
"""


@pytest.fixture
def shop(shell: Shell) -> Shell:
    (shell.folder / "shop.py").write_text(TASKS)
    return shell


def enqueue(shop: Shell, task: str, *names: str) -> None:
    with open_store(f"sqlite:///{shop.folder}/jobs.db") as store:
        store.enqueue_many("default", [{"task": task, "arguments": {"name": name}} for name in names])


def states(shop: Shell) -> set[JobState]:
    with open_store(f"sqlite:///{shop.folder}/jobs.db") as store:
        return {job.state for job in store.list()}


def pids(shop: Shell, name: str = "*") -> list[int]:
    return [int(path.name.rpartition(" ")[2]) for path in shop.folder.glob(f"{name} by *")]


def wait_until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_jobs_run_in_all_processes_and_the_counts_are_added_up(shop: Shell) -> None:
    enqueue(shop, "hold", "a", "b", "c")
    with shop.start("worker", "shop:app", "--processes", "3", "--concurrency", "1", "--json") as parent:
        wait_until(lambda: len(pids(shop)) == 3)
        assert len(set(pids(shop))) == 3
        assert parent.pid not in pids(shop)
        (shop.folder / "go on").touch()
        wait_until(lambda: states(shop) == {JobState.SUCCEEDED})
        parent.send_signal(signal.SIGTERM)
        out, err = parent.communicate(timeout=60)
    assert parent.returncode == 0, err
    assert '"succeeded": 3' in out
    assert not [pid for pid in pids(shop) if alive(pid)]


def test_a_process_that_is_killed_is_replaced(shop: Shell) -> None:
    enqueue(shop, "hold", "a")
    with shop.start("worker", "shop:app", "--processes", "2", "--concurrency", "1", "--json") as parent:
        wait_until(lambda: pids(shop, "a"))
        os.kill(pids(shop, "a")[0], signal.SIGKILL)
        assert parent.stderr is not None
        assert any("was killed by SIGKILL after" in line for line in parent.stderr)
        (shop.folder / "go on").touch()
        wait_until(lambda: states(shop) == {JobState.SUCCEEDED})
        enqueue(shop, "hold", "b", "c")
        parent.send_signal(signal.SIGINT)
        _, err = parent.communicate(timeout=60)
    assert parent.returncode == 0, err


def test_they_stop_when_their_parent_is_killed(shop: Shell) -> None:
    enqueue(shop, "hold", "a", "b")
    with shop.start("worker", "shop:app", "--processes", "2", "--concurrency", "1") as parent:
        wait_until(lambda: len(pids(shop)) == 2)
        parent.kill()
        (shop.folder / "go on").touch()
        wait_until(lambda: not [pid for pid in pids(shop) if alive(pid)])
        parent.communicate(timeout=60)
    assert states(shop) == {JobState.SUCCEEDED}


def test_until_idle_all_end_by_themselves(shop: Shell) -> None:
    enqueue(shop, "note", *"abcdefgh")
    run = shop("worker", "shop:app", "--processes", "2", "--until-idle", "--json")
    assert run.json["succeeded"] == 8


def test_one_that_fails_by_itself_ends_the_others(shop: Shell) -> None:
    (shop.folder / "jobs.db").write_text("no database " * 100)
    run = shop("worker", "shop:app", "--processes", "2")
    assert run.code == 3
    assert "not a SQLite database" in run.err or "not a database" in run.err


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # A process that has ended stays until its parent has waited for it, and here its parent may be gone.
    status = Path(f"/proc/{pid}/stat")
    return not status.exists() or status.read_text().rpartition(")")[2].split()[0] != "Z"
