"""Metrics of several processes as one: each writes its numbers into files, their parent reads and adds them.

This is the multiprocess mode of prometheus_client, with names in place of process ids: a process that takes the place of one
that died goes on counting in its files. So no count is lost, even if a process is killed, and files do not pile up.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from conquiet.observe.failsafe import refresh_gauges

__all__ = ["DIRECTORY", "SummedMetrics", "join_sum"]

DIRECTORY = "PROMETHEUS_MULTIPROC_DIR"  # where prometheus_client looks for the directory
_REFRESH_SECONDS = 1.0


def join_sum(number: int) -> None:
    """In a process that was started with `DIRECTORY` set: count as number so-and-so of the sum.

    Must be called before the metrics are created.
    """
    from prometheus_client import multiprocess, values

    own, name = os.getpid(), _name(number)
    # A fork of this process must not write into the same files.
    values.ValueClass = values.MultiProcessValue(lambda: name if os.getpid() == own else os.getpid())  # type: ignore[no-untyped-call]
    multiprocess.mark_process_dead(name)  # type: ignore[no-untyped-call]
    threading.Thread(target=_keep_gauges, name="conquiet gauges", daemon=True).start()


def _keep_gauges() -> None:
    # Nobody can ask this process for the numbers that are read at a scrape.
    while True:
        refresh_gauges()
        time.sleep(_REFRESH_SECONDS)


class SummedMetrics:
    """For the parent: the sum over processes 1 to `count`, whose numbers are in `directory`."""

    def __init__(self, directory: str, count: int) -> None:
        self.directory = directory
        self._names = {_name(number) for number in range(1, count + 1)}

    def ended(self, number: int) -> None:
        """Remove the gauges of a process that has ended. What it has counted stays."""
        from prometheus_client import multiprocess

        multiprocess.mark_process_dead(_name(number), self.directory)  # type: ignore[no-untyped-call]

    def exposition(self) -> tuple[bytes, str] | None:
        """Return the sum and its content type; None without prometheus_client."""
        try:
            from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
        except ImportError:
            return None

        return generate_latest(SimpleNamespace(collect=self._collect)), CONTENT_TYPE_LATEST

    def _collect(self) -> Any:
        from prometheus_client.multiprocess import MultiProcessCollector

        files = []
        for path in Path(self.directory).glob("*.db"):
            if path.stem.rpartition("_")[2] in self._names:
                files.append(str(path))
            else:  # of a process that a worker has started, such as a task's own
                path.unlink(missing_ok=True)
        return MultiProcessCollector.merge(files, accumulate=True)  # type: ignore[no-untyped-call]


def _name(number: int) -> str:
    return f"worker{number}"  # no process id looks like this
