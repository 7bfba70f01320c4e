"""Worker processes from the side of their owner: started, read from, killed, paused, stopped."""

from __future__ import annotations

import json
import os
import random
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from time import monotonic, sleep
from types import TracebackType
from typing import Any, Self

from conquiet.errors import redact

__all__ = ["WorkerProcess", "kill_until"]

_LIVES = 0.4  # seconds that a process works, at most, before it is killed
_PATIENCE = 60.0


class WorkerProcess:
    """A process of `job_worker` or `stream_worker`, depending on the order; it ends with its block."""

    def __init__(self, order: dict[str, Any]) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        module = "job_worker" if order["work"] == "jobs" else "stream_worker"
        # The order is sent on standard input: a DSN may contain a password, and all users can see arguments.
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"conquiet.verify.{module}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
        )
        self._heard = b""
        self._tell(json.dumps(order))

    def next_line(self, seconds: float) -> str | None:
        """Its next line; None if there is none within `seconds`, or it has ended."""
        assert self._process.stdout is not None
        deadline = monotonic() + seconds
        while b"\n" not in self._heard:
            if not select.select([self._process.stdout], [], [], max(0.0, deadline - monotonic()))[0]:
                return None
            data = os.read(self._process.stdout.fileno(), 1 << 16)
            if not data:
                return None
            self._heard += data
        line, _, self._heard = self._heard.partition(b"\n")
        return line.decode()

    def wait_for(self, line: str) -> None:
        """Other lines may come first: on a slow machine a lease may expire, and the process gets the job again."""
        deadline = monotonic() + _PATIENCE
        said: str | None = ""
        while said != line:
            said = self.next_line(deadline - monotonic())
            if said is None:
                raise RuntimeError(f"a worker process did not print {line!r}{self._why()}")

    def go_on(self, about: str) -> None:
        """Let it continue with the job or message of this id."""
        self._tell(about)

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def pause(self) -> None:
        """Send SIGSTOP, and wait until it is stopped."""
        self.send(signal.SIGSTOP)
        if hasattr(os, "waitid"):  # not on every Unix
            os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOWAIT)

    def resume(self) -> None:
        self.send(signal.SIGCONT)

    def end(self) -> dict[str, Any]:
        """Wait for its regular end; returns its counts."""
        said, line = None, self.next_line(_PATIENCE)
        while line is not None:
            said, line = line, self.next_line(_PATIENCE)
        code = self._process.wait(_PATIENCE)
        if code != 0 or said is None:
            raise RuntimeError(f"a worker process ended with {code}{self._why()}")
        counts: dict[str, Any] = json.loads(said)
        return counts

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        self._errors.close()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()

    def _why(self) -> str:
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").split("\n")
        last = next((line for line in reversed(lines) if line.strip()), "")
        return f": {redact(last)}" if last else ""


def kill_until(
    order: dict[str, Any],
    kills: int,
    *,
    left: Callable[[], int],
    feed: Callable[[], None],
    patience: float = 120.0,
) -> None:
    """Run two worker processes and repeatedly kill -9 and replace one, until `kills` were killed and nothing is `left`.

    Only a process that has begun to work is killed; `feed` adds work if there is too little.
    """
    killed, deadline = 0, monotonic() + patience
    with ExitStack() as stack:
        workers = [stack.enter_context(WorkerProcess(order)) for _ in range(2)]
        while killed < kills or left():
            if monotonic() > deadline:
                raise TimeoutError(
                    f"after {patience:.0f} s {killed} of {kills} processes were killed, and work was left"
                )
            if killed < kills and left() < 2:
                feed()
            sleep(random.uniform(0.0, _LIVES))
            if killed < kills and workers[0].next_line(0.0) is not None:
                workers.pop(0).kill()
                killed += 1
                workers.append(stack.enter_context(WorkerProcess(order)))
