"""A test run that is killed tears down its fixtures, does not outlive the make that started it, and ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYTEST = [sys.executable, "-m", "pytest", "-s", "--disable-plugin-autoload", "-p", "tests.interruption"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "MAKELEVEL": "1"}

WAITING = """
import pytest, signal

@pytest.fixture
def server():
    yield
    print("down", flush=True)

def test_that_waits(server):
    print("up", flush=True)
    signal.pause()
"""
LEAVING = """
import threading

def test_that_leaves_a_thread():
    threading.Thread(target=threading.Event().wait, name="forgotten").start()
"""
# Stands in for make: it starts pytest and waits.
PARENT = "import subprocess, sys; subprocess.run(sys.argv[1:])"


@pytest.mark.parametrize(
    ("number", "killed"),
    [
        (signal.SIGTERM, "pytest"),
        (signal.SIGHUP, "pytest"),
        *([(signal.SIGKILL, "its parent")] if sys.platform == "linux" else []),  # only Linux has pdeathsig
    ],
)
def test_fixtures_are_torn_down(tmp_path: Path, number: signal.Signals, killed: str) -> None:
    (tmp_path / "test_waiting.py").write_text(WAITING)
    command = PYTEST
    if killed == "its parent":
        command = [sys.executable, "-c", PARENT, *command]
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # nohup ignores it
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.endswith("up\n"):
                process.send_signal(number)
                break
        # Read to the end of the pipe: it closes when the last process that could write to it is gone.
        rest = process.stdout.read()
    assert "down\n" in rest
    assert "KeyboardInterrupt" in rest


def test_a_forgotten_thread_fails_the_run_but_does_not_hold_it(tmp_path: Path) -> None:
    (tmp_path / "test_leaving.py").write_text(LEAVING)
    result = subprocess.run(PYTEST, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, timeout=60)
    assert result.returncode == pytest.ExitCode.TESTS_FAILED
    assert "left running by a test: forgotten" in result.stdout
    assert "1 passed in" in result.stdout.splitlines()[-1]
