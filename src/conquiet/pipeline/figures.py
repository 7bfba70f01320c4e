"""How many verdicts, alerts, … were written: counted by the writes themselves, without a second look at the rows."""

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

from conquiet.pipeline.reconcile import JudgedOutputs, ReconcileOutputs
from conquiet.reconcile.rules import Status

__all__ = ["RECENT", "CountedFrame", "CountedOutputs", "Figures", "RecentFigures"]

_log = logging.getLogger("conquiet.pipeline")
_ROWS, _HUNDREDTHS = "rows", "hundredths"
_WAIT_SECONDS = 10.0  # Spark tells what it has counted on a thread of its own, a moment after the write


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
        self.rows = frame.observe(self._observation, f.count(f.lit(1)).alias(_ROWS), *more)

    def count(self) -> int | None:
        """Of its rows, after it was written; None if Spark does not tell."""
        return self.counts(_WAIT_SECONDS).get(_ROWS)

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


class CountedOutputs:
    """`tables` are the outputs, each a `CountedFrame`."""

    def __init__(self, outputs: ReconcileOutputs) -> None:
        self._frames = {
            name: CountedFrame(frame, *_more_counts(name)) for name, frame in outputs._asdict().items()
        }
        self.tables = type(outputs)(*(frame.rows for frame in self._frames.values()))
        if isinstance(outputs, JudgedOutputs) and isinstance(self.tables, JudgedOutputs):
            self.tables.rows, self.tables.as_of = outputs.rows, outputs.as_of

    def figures(self, seconds: float = _WAIT_SECONDS) -> Figures:
        """Of the tables that were written: it waits so long for each of which Spark has not told yet."""
        found = {name: frame.counts(seconds) for name, frame in self._frames.items()}
        return Figures(
            {name.value: found["verdicts"][name] for name in Status if found["verdicts"].get(name)},
            alerts=found["alerts"].get(_ROWS, 0),
            retries=found["retries"].get(_ROWS, 0),
            quarantined=found["quarantine"].get(_ROWS, 0),
            trust_hundredths=found["trust"].get(_HUNDREDTHS) or 0,
        )


def _more_counts(table: str) -> list[Column]:
    if table == "verdicts":
        return [f.count_if(f.col("status") == name.value).alias(name.value) for name in Status]
    if table == "trust":
        return [f.sum("delta_hundredths").alias(_HUNDREDTHS)]
    return []


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
