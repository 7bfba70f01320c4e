"""Several workers on one queue."""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic
from typing import Any

from conquiet.checks import checked_int
from conquiet.errors import LocalConfigError, StoreUnavailableError
from conquiet.local.queue import PriorityDelayQueue
from conquiet.local.worker import Session, Worker, say_what_stays

__all__ = ["WorkerPool"]


class WorkerPool:
    """`size` workers that share `queue` and `handler`, which must be thread-safe. Each job gets its own session."""

    def __init__(
        self,
        queue: PriorityDelayQueue,
        handler: Callable[..., object],
        size: int,
        *,
        session_factory: Callable[[], Session] | None = None,
        poll_timeout: float = 5.0,
        outages: tuple[type[BaseException], ...] = (StoreUnavailableError,),
    ) -> None:
        self._queue = queue
        self._lock = threading.Lock()
        self._working = checked_int("size", size, 1, error=LocalConfigError)
        self._workers = [
            _Member(
                self._one_ended,
                queue,
                handler,
                session_factory=session_factory,
                poll_timeout=poll_timeout,
                outages=outages,
                name=f"worker-{number}",
            )
            for number in range(1, size + 1)
        ]
        for worker in self._workers:
            worker._outage = self._workers[0]._outage

    def start(self) -> None:
        """Start the workers. A pool runs once."""
        try:
            for worker in self._workers:
                worker.start()
        except BaseException:
            self.request_stop()  # for example, no more threads are available: stop those that did start
            raise

    def stop(self, timeout: float | None = None) -> bool:
        """Process ready items, then end, like `Worker.stop`. Return True if all workers have ended."""
        self.request_stop()
        return self.join(timeout)

    def request_stop(self) -> None:
        """Like `stop`, but without waiting. Safe in a signal handler."""
        for worker in self._workers:
            worker.request_stop()

    def join(self, timeout: float | None = None) -> bool:
        """Wait until all workers have ended, at most `timeout` seconds. Return True if they have."""
        deadline = None if timeout is None else monotonic() + timeout
        for worker in self._workers:
            worker.join(None if deadline is None else max(0.0, deadline - monotonic()))
        return not self.is_alive()

    def is_alive(self) -> bool:
        """Whether any worker is running."""
        return any(worker.is_alive() for worker in self._workers)

    def __enter__(self) -> WorkerPool:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def _one_ended(self) -> None:
        with self._lock:
            self._working -= 1
            last = self._working == 0
        if last:  # one line for all of them
            say_what_stays(self._queue, self._workers[0]._outage)


class _Member(Worker):
    def __init__(self, ended: Callable[[], None], *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._tell = ended

    def _ended(self) -> None:
        self._tell()
