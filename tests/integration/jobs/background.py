"""Workers that run beside a test, and waiting for what they do."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self, TypeVar

from conquiet.jobs import JobWorker, WorkerCounts

T = TypeVar("T")


def until(condition: Callable[[], T], seconds: float = 20.0) -> T:
    """The result of `condition`, as soon as it is true."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not so after {seconds:g} s: {value!r}"
        time.sleep(0.005)
    return value


class Running:
    """`worker.run()` on its own thread."""

    def __init__(self, worker: JobWorker) -> None:
        self.worker = worker
        self._counts: WorkerCounts | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="worker under test", daemon=True)

    def _run(self) -> None:
        try:
            self._counts = self.worker.run()
        except BaseException as error:
            self._error = error

    @property
    def ended(self) -> bool:
        return not self._thread.is_alive()

    def end(self, seconds: float = 20.0) -> WorkerCounts:
        """Wait for its end; returns its counts, or raises its error."""
        self._thread.join(seconds)
        assert self.ended, f"it still runs after {seconds:g} s"
        if self._error is not None:
            raise self._error
        assert self._counts is not None
        return self._counts

    def stop(self) -> WorkerCounts:
        self.worker.stop()
        return self.end()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for _ in range(2):
            if not self.ended:
                self.worker.stop()
        self._thread.join(10)
        assert self.ended, "it did not end at a second stop()"
