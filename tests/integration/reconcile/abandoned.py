"""A program: reconciles reports with a pool of workers and is killed after this many calls of the platform.

python abandoned.py DSN calls report_id …
"""

from __future__ import annotations

import os
import signal
import sys
import threading

from conquiet.local import PriorityDelayQueue, WorkerPool
from conquiet.reconcile import (
    Metrics,
    Observation,
    PlatformAdapter,
    PlatformFetcher,
    Reconciler,
    ReconciliationJob,
    open_database,
)
from conquiet.testing import ManualClock


class Deadly(PlatformAdapter):
    def __init__(self, calls: int) -> None:
        self._left = calls
        self._lock = threading.Lock()

    def fetch(self, post_id: str) -> Observation:
        with self._lock:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return Observation(Metrics(1000, 30, 2))


def main(dsn: str, calls: str, *reports: str) -> None:
    sessions = open_database(dsn)
    queue = PriorityDelayQueue()
    for report_id in reports:
        queue.enqueue(ReconciliationJob(int(report_id)))
    reconcile = Reconciler(PlatformFetcher({"instagram": Deadly(int(calls))}), sessions, clock=ManualClock())
    with WorkerPool(queue, reconcile, 3, session_factory=sessions):
        pass


if __name__ == "__main__":
    main(*sys.argv[1:])
