"""Child processes that a test can kill. They run the functions of `programs.py`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

ROOT = Path(__file__).parents[2]


class Program:
    """A running program. It prints line by line, and waits until the test lets it go on."""

    def __init__(self, program: Callable[..., Any], *arguments: object) -> None:
        command = [sys.executable, "-m", "tests.conformance.programs", program.__name__]
        self._process = subprocess.Popen(
            [*command, *map(str, arguments)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def next_line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().rstrip("\n")

    def go_on(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def kill(self) -> list[str]:
        """Send SIGKILL. Return the remaining lines of output."""
        self._process.kill()
        assert self._process.stdout is not None
        # Not `communicate`, which does not see what `next_line` has read ahead.
        rest = self._process.stdout.read().splitlines()
        self._process.wait(60)
        return rest

    def end(self) -> list[str]:
        """Wait until it exits with 0. Return the remaining lines of output."""
        out, error = self._process.communicate(timeout=90)
        assert self._process.returncode == 0, error
        return out.splitlines()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()


def all_at_once(count: int, program: Callable[..., Any], *arguments: object) -> list[list[str]]:
    """Run `count` programs, released together when all are ready. Return the output of each.

    `{number}` in an argument is replaced by the number of the program.
    """
    programs = [
        Program(program, *(str(argument).replace("{number}", str(number)) for argument in arguments))
        for number in range(count)
    ]
    try:
        for one in programs:
            assert one.next_line() == "ready"
        for one in programs:
            one.go_on()
        return [one.end() for one in programs]
    finally:
        for one in programs:
            one.__exit__(None, None, None)
