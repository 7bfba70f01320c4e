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


def commands() -> list[str]:
    """The lines of the console blocks that begin with a prompt."""
    return [line[2:] for text in blocks("console") for line in text.splitlines() if line.startswith("$ ")]


def test_a_task_of_ones_own(tmp_path: Path) -> None:
    program = blocks("python")[0]
    assert len(program.splitlines()) < 20
    (tmp_path / "tasks.py").write_text(program)
    all_in_one, producer, worker = commands()[:3]
    began = time.monotonic()
    assert sorted(run(all_in_one, tmp_path).split()) == ["Ann", "Bob", "hello,", "hello,"]
    assert time.monotonic() - began < 120
    assert run(producer, tmp_path) == ""
    with open_store(f"sqlite:///{tmp_path}/jobs.db") as store:
        assert store.stats()["default"].ready == 1
        assert "hello, Cy" in run(worker, tmp_path)
        assert [job.state for job in store.list()] == [JobState.SUCCEEDED] * 3
