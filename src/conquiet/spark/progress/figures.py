"""How many rows were written, counted by the writes themselves, and what came of a micro-batch, for those who show it."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as f

__all__ = ["RECENT", "ROWS", "WAIT_SECONDS", "CountedFrame", "Figures", "RecentFigures"]

_log = logging.getLogger("conquiet.spark")
ROWS = "rows"
WAIT_SECONDS = 10.0  # Spark tells what it has counted on a thread of its own, a moment after the write


@dataclass(frozen=True)
class Figures:
    """What came of some reports."""

    verdicts: Mapping[str, int] = field(default_factory=dict)
    """By status; without those of which there are none."""
    alerts: int = 0
    retries: int = 0
    quarantined: int = 0
    trust_hundredths: int = 0


class CountedFrame:
    """`rows` is the frame, whose rows are counted when it is written for the first time."""

    def __init__(self, frame: DataFrame, *more: Column) -> None:
        self._observation = Observation()
        self.rows = frame.observe(self._observation, f.count(f.lit(1)).alias(ROWS), *more)

    def count(self) -> int | None:
        """Of its rows, after it was written; None if Spark does not tell."""
        return self.counts(WAIT_SECONDS).get(ROWS)

    def counts(self, seconds: float) -> Mapping[str, Any]:
        """What was counted, waited for so long; nothing if it was not written. (`Observation.get` waits for ever.)"""
        deadline = time.monotonic() + seconds
        future = self._observation._jo.future()  # type: ignore[union-attr]
        while not future.isCompleted():
            if time.monotonic() >= deadline:
                _log.debug("Spark has not told how many rows it has written")
                return {}
            time.sleep(0.005)
        return self._observation.get


class RecentFigures:
    """Figures of micro-batches, from those that write them to those that show them: the last few, looked at or not."""

    def __init__(self, most: int = 64) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[str, int], Figures] = OrderedDict()

    def put(self, query: str, number: int, figures: Figures) -> None:
        with self._lock:
            self._kept[query, number] = figures
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)

    def take(self, query: str, number: int) -> Figures | None:
        with self._lock:
            return self._kept.pop((query, number), None)


RECENT = RecentFigures()
