"""The command as a user runs it: a process with its own environment."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

_SETTINGS: tuple[str, ...] = (
    "DATABASE_URL",
    "REDIS_URL",
    "CONQUIET_DSN",
    "CONQUIET_REDIS_URL",
    "CONQUIET_GROUP",
    "CONQUIET_APP",
)
_SETTINGS += ("CONQUIET_QUEUES", "CONQUIET_CONCURRENCY", "CONQUIET_CONFIG", "CONQUIET_DEBUG")


_EACH = """
import io, json, sys
from contextlib import redirect_stderr, redirect_stdout
from conquiet.cli.command import run
commands, results = json.load(sys.stdin), []
for arguments in commands:
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        code = run(arguments)
    results.append((code, out.getvalue(), err.getvalue()))
print(json.dumps(results))
"""


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.code == 0, self.err
        return json.loads(self.out)

    def refused(self, code: int, *parts: str) -> None:
        """It ended with this code and one line on standard error that contains all of these."""
        assert (self.code, len(self.err.splitlines())) == (code, 1), self.out + self.err
        assert self.err.startswith("conquiet: ")
        assert [part for part in parts if part not in self.err] == [], self.err


class Shell:
    """A folder and an environment in which commands are run."""

    def __init__(self, folder: Path, **variables: str) -> None:
        self.folder = folder
        self.environment = {name: value for name, value in os.environ.items() if name not in _SETTINGS}
        self.environment |= variables

    def __call__(self, *arguments: str, stdin: str = "", **variables: str) -> Done:
        done = subprocess.run(
            self.command(*arguments),
            cwd=self.folder,
            env=self.environment | variables,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=100,
        )
        return Done(done.returncode, done.stdout, done.stderr)

    def each(self, *lines: str, timeout: float = 100, **variables: str) -> list[Done]:
        """Run several commands in one process, one after the other: a process costs half a second."""
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", _EACH],
            cwd=self.folder,
            env=self.environment | variables,
            input=json.dumps([shlex.split(line) for line in lines]),
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        assert done.returncode == 0, done.stderr
        return [Done(*result) for result in json.loads(done.stdout)]

    def refuses(
        self, refusals: dict[str, tuple[Any, ...]], timeout: float = 100, **variables: str
    ) -> list[Done]:
        """Check commands, each against its exit code and the parts of its one line."""
        results = self.each(*refusals, timeout=timeout, **variables)
        for done, (code, *parts) in zip(results, refusals.values(), strict=True):
            done.refused(code, *parts)
        return results

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start a command that runs until it is stopped."""
        return subprocess.Popen(
            self.command(*arguments),
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    @staticmethod
    def command(*arguments: str) -> list[str]:
        return [sys.executable, "-W", "error", "-m", "conquiet", *arguments]


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)
