"""Test processes that can be stopped and killed: they run the programs of `programs.py`."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

ROOT = Path(__file__).parents[3]


class Program:
    """A running program. It does not outlive its block."""

    def __init__(self, name: str, **arguments: Any) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.integration.jobs.programs", name, json.dumps(arguments)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "ready\n":
            raise AssertionError(self._process.communicate()[1])

    @property
    def pid(self) -> int:
        return self._process.pid

    def tell(self) -> None:
        """Write a line to its standard input."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def pause(self, is_fit: Callable[[], bool]) -> None:
        """SIGSTOP at a moment when `is_fit` is true: for example not while it holds a lock that others need."""
        while True:
            self.send(signal.SIGSTOP)
            while _state(self.pid) != "T":
                time.sleep(0.001)
            if is_fit():
                return
            self.send(signal.SIGCONT)
            time.sleep(0.01)

    def kill(self) -> str:
        """SIGKILL; returns its last error output."""
        self._process.kill()
        return "" if self._process.stderr.closed else self._process.communicate()[1]

    def end(self, seconds: float = 20.0) -> tuple[int, str, str]:
        """Wait for its end; returns its status, the rest of its output, and its error output."""
        out, error = self._process.communicate(timeout=seconds)
        return self._process.returncode, out, error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        said = self.kill()
        if error is not None and said:
            error.add_note(f"the program said: {said}")


def is_gone(pid: int) -> bool:
    """Whether the process has ended (a zombie has)."""
    try:
        return _state(pid) == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
