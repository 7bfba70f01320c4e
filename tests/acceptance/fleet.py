"""Workers in their own processes, started, killed and started again; none outlives the block."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Protocol

READY = b"ready\n"  # what a worker prints on its standard output when it has begun
ROOT = Path(__file__).parents[2]


class Work(Protocol):
    """The instructions for a worker."""

    @property
    def name(self) -> str: ...

    def command(self) -> list[str]: ...


class Worker:
    """One process and its instructions."""

    def __init__(self, work: Work, log: Path) -> None:
        self.work = work
        self._log = log
        self._said = b""
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                work.command(),
                cwd=ROOT,
                stdin=subprocess.PIPE,  # closed when the parent ends, which the worker notices
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)

    def is_ready(self) -> bool:
        """Whether it has begun."""
        assert self._process.stdout is not None
        if self._said != READY:
            self._said += self._process.stdout.read() or b""
        return self._said == READY

    def die_at(self, point: str) -> None:
        """Tell it to kill itself the next time it reaches this point."""
        assert self._process.stdin is not None
        os.write(self._process.stdin.fileno(), point.encode() + b"\n")

    def exit_code(self) -> int | None:
        return self._process.poll()

    def kill(self) -> None:
        """Send SIGKILL to it and everything it started; returns when it is dead."""
        if self._process.poll() is None:
            try:
                os.killpg(self._process.pid, signal.SIGKILL)
            except ProcessLookupError:
                self._process.kill()  # it had not created its own session yet
        self._process.wait()

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def wait(self, seconds: float) -> int:
        return self._process.wait(seconds)

    def close(self) -> None:
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def last_words(self) -> str:
        return self._log.read_text(errors="replace")[-4_000:]


class Fleet:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._workers: list[Worker] = []

    def start(self, work: Work) -> Worker:
        worker = Worker(work, self._folder / f"{work.name}.log")
        self._workers.append(worker)
        return worker

    def end(self, seconds: float = 30.0) -> None:
        """Send SIGTERM to all live workers; each must end by itself, cleanly."""
        deadline = time.monotonic() + seconds
        alive = [worker for worker in self._workers if worker.exit_code() is None]
        for worker in alive:
            while not worker.is_ready():  # before that it does not handle SIGTERM
                assert time.monotonic() < deadline, worker.last_words()
                time.sleep(0.01)
            worker.send(signal.SIGTERM)
        codes = {worker.work.name: worker.wait(max(0.0, deadline - time.monotonic())) for worker in alive}
        assert set(codes.values()) <= {0}, codes

    def __enter__(self) -> Fleet:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self._workers:
            worker.close()
