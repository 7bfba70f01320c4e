"""Test processes that can be killed: they run the programs of `programs.py`."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

ROOT = Path(__file__).parents[3]


def run_program(*arguments: str) -> list[str]:
    """Run a program to its end; returns the lines it printed."""
    command = [sys.executable, "-m", "tests.integration.queue.programs", *arguments]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


class Program:
    """A running program. It prints line by line, and goes on when a line is sent to it."""

    def __init__(self, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.integration.queue.programs", *arguments],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def next_line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().rstrip("\n")

    def go_on(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def end(self) -> tuple[int, list[str], str]:
        """Wait for its end; returns its status, its remaining lines, and its error output."""
        out, error = self._process.communicate(timeout=60)
        return self._process.returncode, out.splitlines(), error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()
