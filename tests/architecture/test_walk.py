"""docs/architecture.md follows a job through the files that really handle it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
# Crossed, but not about the job: how flows, threads, clocks and checks work, and what the worker does for any job.
MACHINERY = {
    "checks.py",
    "clock.py",
    "flow/contexts.py",
    "flow/effects.py",
    "flow/isolation.py",
    "flow/steps.py",
    "flow/threads.py",
    "jobs/worker/lanes.py",
    "jobs/worker/outage.py",
}


def walk() -> list[str]:
    text = PAGE.partition("The files of this walk, in order:")[2].partition("\n\n")[0]
    return re.findall(r"`([\w/]+\.py)`", text)


def test_the_page_names_only_files_that_exist() -> None:
    named = set(re.findall(r"`((?:\w+/)*\w+\.(?:py|sql))`", PAGE))
    assert len(named) > 40
    assert {name for name in named if not (ROOT / "src" / "conquiet" / name).exists()} == set()


def test_the_page_names_every_room() -> None:
    rooms = {path.name for path in (ROOT / "src" / "conquiet").iterdir() if (path / "__init__.py").exists()}
    assert {room for room in rooms if f"`{room}/`" not in PAGE} == set()


def test_a_job_is_followed_in_twenty_files() -> None:
    assert len(walk()) == len(set(walk())) <= 20


def test_the_walk_is_the_one_a_job_takes(postgres_dsn: str) -> None:
    """Run one job through an idle worker, with a profiler in every thread."""
    program = ROOT / "tests" / "architecture" / "walked_files.py"
    done = subprocess.run([sys.executable, program, postgres_dsn], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    crossed = set(done.stdout.split()) - MACHINERY
    rarely = {"jobs/worker/heartbeat.py"}  # only jobs that take long get a heartbeat
    assert crossed - rarely == set(walk()) - rarely
