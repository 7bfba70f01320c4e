"""The quick start of the documentation: its file is saved and its commands are run."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

from conquiet.jobs import JobState, open_store

PAGE = Path(__file__).parents[3] / "docs" / "quickstart.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def run(command: str, folder: Path) -> str:
    """Run a command of the page with this Python, and with a worker that ends when the queue is empty."""
    words = shlex.split(command)
    words = (
        [sys.executable, *words[1:]]
        if words[0] == "python"
        else [sys.executable, "-m", *words, "--until-idle"]
    )
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def greeted(said: str) -> list[str]:
    """The names greeted, in any order; two threads may print into the same line."""
    return sorted(re.findall(r"hello, (Ann|Bob)", said))


def test_a_task_of_ones_own(tmp_path: Path) -> None:
    program = blocks("python")[0]
    assert len(program.splitlines()) < 20
    tasks = tmp_path / "tasks.py"
    tasks.write_text(program)
    first, second = blocks("bash")
    began = time.monotonic()
    assert greeted(run(first, tmp_path)) == ["Ann", "Bob"]
    assert time.monotonic() - began < 120

    tasks.write_text("\n".join(program.splitlines()[:-1]))  # "Take the last line out"
    assert run(first, tmp_path) == ""
    with open_store(f"sqlite:///{tmp_path}/jobs.db") as store:
        while store.stats()["default"].delayed:
            time.sleep(0.01)  # Bob is delayed by half a second
        assert store.stats()["default"].ready == 2
        assert greeted(run(second, tmp_path)) == ["Ann", "Bob"]
        assert {job.state for job in store.list()} == {JobState.SUCCEEDED}
