"""Background work of a check: threads that end with its block, without logging."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic, sleep
from types import TracebackType
from typing import Any, Self

from conquiet.errors import QueueConnectionError
from conquiet.jobs import JobWorker

__all__ = ["Consumers", "hushed", "until", "working"]

_PATIENCE = 60.0


@contextmanager
def hushed() -> Iterator[None]:
    """Without logging: a check causes broken connections and dead workers deliberately."""
    log = logging.getLogger("conquiet")
    level = log.level
    log.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        log.setLevel(level)


def until(condition: Callable[[], Any], what: str, *, patience: float = _PATIENCE) -> None:
    deadline = monotonic() + patience
    while not condition():
        if monotonic() > deadline:
            raise TimeoutError(f"{what}: not true after {patience:.0f} s")
        sleep(0.01)


@contextmanager
def working(worker: JobWorker) -> Iterator[None]:
    """Run `worker.run()` on a thread; its exception is raised at the end of the block."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            worker.run()
        except BaseException as error:  # noqa: BLE001 - raised below
            failures.append(error)

    thread = threading.Thread(target=run, name="worker under verification")
    thread.start()
    try:
        yield
    finally:
        worker.stop()
        thread.join()
    if failures:
        raise failures[0]


class Consumers:
    """Consumers on threads; one that a cut connection has ended is created and run again."""

    def __init__(self, *runs: tuple[Callable[[], Any], Callable[[Any], None]]) -> None:
        """For each consumer, a function that creates it and one that runs it. A consumer has `stop`."""
        self._over = threading.Event()
        self._running: dict[int, Any] = {}
        self.failures: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._run, args=(number, *run), name="consumer under verification")
            for number, run in enumerate(runs)
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        for consumer in list(self._running.values()):
            consumer.stop()
        for thread in self._threads:
            thread.join()
        if error is None and self.failures:
            raise self.failures[0]

    def _run(self, number: int, make: Callable[[], Any], run: Callable[[Any], None]) -> None:
        while not self._over.is_set():
            try:
                self._running[number] = consumer = make()
                if not self._over.is_set():
                    run(consumer)
            except QueueConnectionError:
                self._over.wait(0.01)
            except BaseException as error:  # noqa: BLE001 - a finding: raised at the end
                self.failures.append(error)
                return
