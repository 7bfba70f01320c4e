"""Worker processes as their owner sees them: started, listened to, killed, paused, told to end."""

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

_LIVES = 0.4  # seconds that a process works, about, before it is killed
_PATIENCE = 60.0


class WorkerProcess:
    """A process of `job_worker` or `stream_worker`, as the order has it; it does not outlive its block."""

    def __init__(self, order: dict[str, Any]) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        module = "job_worker" if order["work"] == "jobs" else "stream_worker"
        # The order goes by standard input: a DSN may hold a password, and arguments are for all to see.
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"conquiet.verify.{module}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
        )
        self._heard = b""
        self._tell(json.dumps(order))

    def next_line(self, seconds: float) -> str | None:
        """The next thing it says; None if it says nothing for so long, or has ended."""
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
        """It may say other things first: a lease that lapsed on a slow machine brings a job back to it."""
        deadline = monotonic() + _PATIENCE
        said: str | None = ""
        while said != line:
            said = self.next_line(deadline - monotonic())
            if said is None:
                raise RuntimeError(f"a worker process did not say {line!r}{self._why()}")

    def go_on(self, about: str) -> None:
        """With the job or message of this id."""
        self._tell(about)

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def pause(self) -> None:
        """Stop it, and wait until it stands."""
        self.send(signal.SIGSTOP)
        if hasattr(os, "waitid"):  # not on every Unix
            os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOWAIT)

    def resume(self) -> None:
        self.send(signal.SIGCONT)

    def end(self) -> dict[str, Any]:
        """Wait for its end, in order; what it counted."""
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
    """Two worker processes, one of which is killed -9 every now and then and replaced, until that was done `kills` times
    and nothing is `left`. Only a process that has begun to work is killed; `feed` brings more if there is too little."""
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
