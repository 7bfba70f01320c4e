"""Counts rows while they are written, and passes the other counts of each micro-batch to the listener."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as f

__all__ = ["BATCH_COUNTS", "ROWS", "WAIT_SECONDS", "BatchCounts", "CountedFrame", "Counts", "Tally"]

_log = logging.getLogger("conquiet.spark")
ROWS = "rows"
WAIT_SECONDS = 10.0  # Spark delivers observations on a separate thread, shortly after the write


@dataclass(frozen=True)
class Tally:
    """Something that a query counts: how progress shows it, and its metric, `conquiet_pipeline_<metric>_total`."""

    metric: str
    help: str
    """The description of the metric."""
    label: str | None = None
    """The name of the metric's second label, after `query`: there is one number for each of its values."""
    words: str = ""
    """What a line shows after the number. With a label, the line shows the label's values instead."""
    heading: str = ""
    """The heading of its column in the live table. Without one it is shown in lines only."""
    is_warning: bool = False
    """Shown in yellow, after all others."""

    def shown(self, numbers: Mapping[str, int]) -> list[str]:
        """Return the parts of a line, with rich markup; zeros are left out."""
        largest_first = sorted(numbers.items(), key=lambda item: -item[1])
        parts = [
            f"{value} {number:,}" if self.label else f"{number:,} {self.words}"
            for value, number in largest_first
            if number
        ]
        return [f"[yellow]{part}[/]" for part in parts] if self.is_warning else parts

    def cell(self, numbers: Mapping[str, int]) -> str:
        """Return the cell of the live table, whose heading says what is counted."""
        if self.label:
            return "\n".join(self.shown(numbers))
        number = numbers.get("", 0)
        text = f"{number:,}" if number else ""
        return f"[yellow]{text}[/]" if text and self.is_warning else text


Counts = Mapping[Tally, Mapping[str, int]]
"""Numbers per tally, by the value of its label, which is "" for a tally without one."""


class CountedFrame:
    """`rows` is `frame`, whose rows are counted when it is written for the first time."""

    def __init__(self, frame: DataFrame, *more: Column) -> None:
        self._observation = Observation()
        self.rows = frame.observe(self._observation, f.count(f.lit(1)).alias(ROWS), *more)

    def count(self) -> int | None:
        """Return the number of rows written, or None if Spark does not report it in time."""
        return self.counts(WAIT_SECONDS).get(ROWS)

    def counts(self, seconds: float) -> Mapping[str, Any]:
        """Return the counts, waiting at most `seconds`; empty if the frame was not written.

        `Observation.get` would wait forever.
        """
        deadline = time.monotonic() + seconds
        future = self._observation._jo.future()  # type: ignore[union-attr]
        while not future.isCompleted():
            if time.monotonic() >= deadline:
                _log.debug("Spark has not reported how many rows it wrote")
                return {}
            time.sleep(0.005)
        return self._observation.get


class BatchCounts:
    """Passes the counts of a micro-batch from the code that writes it to the listener that shows it.

    Only the last few are kept: there may be no listener.
    """

    def __init__(self, most: int = 64) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[str, int], Counts] = OrderedDict()

    def put(self, query: str, number: int, counts: Counts) -> None:
        with self._lock:
            self._kept[query, number] = counts
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)

    def take(self, query: str, number: int) -> Counts | None:
        with self._lock:
            return self._kept.pop((query, number), None)


BATCH_COUNTS = BatchCounts()
