"""docs/architecture.md follows a job through the files that really handle it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
# Crossed, but not about the job: how flows, threads, clocks, checks and connections work, and what the worker does for any job.
MACHINERY = {
    "checks.py",
    "clock.py",
    "flow/contexts.py",
    "flow/effects.py",
    "flow/isolation.py",
    "flow/places.py",
    "flow/steps.py",
    "flow/threads.py",
    "jobs/backends/postgres/connections.py",
    "jobs/backends/postgres/cursors.py",
    "jobs/backends/postgres/statements.py",
    "jobs/turns.py",
    "jobs/worker/floor.py",
    "jobs/worker/held.py",
    "jobs/worker/intake.py",
    "jobs/worker/lanes.py",
    "jobs/worker/outage.py",
    "jobs/worker/pace.py",
}

WATCHING = ("jobs/worker/events/", "observe/")  # log and metrics, of any job


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
    crossed = {name for name in done.stdout.split() if not name.startswith(WATCHING)} - MACHINERY
    # Only jobs that take long get a heartbeat. The thread that notifies opens its connection when it first needs one.
    rarely = {"jobs/worker/heartbeat.py", "redaction.py"}
    assert crossed - rarely == set(walk()) - rarely
