"""The other end of `held_worker`: starts one, waits for its lines, signals it, lets it go on."""

from __future__ import annotations

import json
import queue
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, Self

ROOT = Path(__file__).parents[2]
PATIENCE = 60.0


class HeldWorker:
    """A held worker process. It does not outlive its block."""

    def __init__(self, dsn: str, point: str, lease_ttl: float, history: str, stops: int = 1) -> None:
        orders = {"dsn": dsn, "point": point, "lease_ttl": lease_ttl, "history": history, "stops": stops}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.held_worker", json.dumps(orders)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._errors: list[str] = []
        self._threads = [
            threading.Thread(target=self._listen),
            threading.Thread(target=self._listen_to_errors),
        ]
        for thread in self._threads:
            thread.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line.strip())
        self._lines.put("")

    def _listen_to_errors(self) -> None:
        assert self._process.stderr is not None
        self._errors.extend(self._process.stderr)

    def wait_for(self, line: str) -> None:
        """The next line of the worker."""
        try:
            said = self._lines.get(timeout=PATIENCE)
        except queue.Empty:
            said = "nothing"
        assert said == line, f"it said {said!r}, not {line!r}: {''.join(self._errors)}"

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def go_on(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def end(self) -> dict[str, Any]:
        """Wait for a clean exit and return the worker's counts."""
        code = self._process.wait(PATIENCE)
        assert code == 0, "".join(self._errors)
        said = ""
        while line := self._lines.get(timeout=PATIENCE):
            said = line
        counts: dict[str, Any] = json.loads(said)
        return counts

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        for thread in self._threads:
            thread.join()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            assert pipe is not None
            pipe.close()
        if error is not None and self._errors:
            error.add_note(f"the worker said: {''.join(self._errors)}")
