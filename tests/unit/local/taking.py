"""Threads that wait in `dequeue`, and a clock that records every wait."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from conquiet.clock import Parker
from conquiet.local import PriorityDelayQueue, QueueItem
from conquiet.testing import ManualClock


class Taker:
    """A thread in one blocking call of `dequeue`."""

    def __init__(self, queue: PriorityDelayQueue, timeout: float | None = None, **options: Any) -> None:
        self._result: list[QueueItem | None] = []
        self.error: BaseException | None = None
        self._call: Callable[[], QueueItem | None] = lambda: queue.dequeue(timeout=timeout, **options)
        self._thread = threading.Thread(target=self._take, daemon=True)
        self._thread.start()

    def _take(self) -> None:
        try:
            self._result.append(self._call())
        except BaseException as error:
            self.error = error

    @property
    def waits(self) -> bool:
        return self._thread.is_alive()

    def result(self) -> QueueItem | None:
        """What `dequeue` returned. It must return within a few seconds."""
        self.end()
        if self.error is not None:
            raise self.error
        return self._result[0]

    def job(self) -> Any:
        item = self.result()
        return None if item is None else item.job

    def end(self) -> None:
        self._thread.join(10)
        assert not self._thread.is_alive(), "dequeue still waits"


class NotedClock(ManualClock):
    """Records the time limit of every wait. Can interrupt the next wait as Ctrl-C would."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float | None] = []
        self.interrupt_next = False

    def wait(self, parker: Parker, timeout: float | None) -> bool:
        self.waits.append(timeout)
        woken = super().wait(parker, timeout)
        if self.interrupt_next:
            self.interrupt_next = False
            raise KeyboardInterrupt
        return woken


def wait_for(condition: Callable[[], bool], timeout: float = 10.0) -> None:
    """Wait until other threads have made the condition true."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true"
        time.sleep(0.001)
