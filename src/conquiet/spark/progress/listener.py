"""Follows the streaming queries of a session, micro-batch by micro-batch: on the terminal and as metrics."""

from __future__ import annotations

import json
from collections import Counter
from datetime import datetime
from typing import Any, Self

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener

from conquiet.errors import redact
from conquiet.observe import PipelineMetrics, safely
from conquiet.spark.progress.counts import BATCH_COUNTS, Counts
from conquiet.spark.progress.view import QueryState, View, stderr_view
from conquiet.spark.source.blocks import Offset

__all__ = ["ProgressListener", "add_counts", "show_progress", "silence_bar"]


def show_progress(spark: SparkSession, *, terminal: bool = True) -> ProgressListener:
    """Follow every streaming query of this session from now on, until `listener.stop()`.

    Metrics go to prometheus_client's registry, if it is installed. With `terminal`, standard error shows a live table of
    the running queries or, if it is not a terminal, a line for each micro-batch.
    """
    listener = ProgressListener(spark, stderr_view() if terminal else None)
    spark.streams.addListener(listener)
    return listener


class ProgressListener(StreamingQueryListener):
    """Spark calls it on a separate thread. Failures here are logged and do not affect the query."""

    def __init__(self, spark: SparkSession, view: View | None) -> None:
        self._spark = spark
        self._view = view
        self._names: dict[str, str] = {}  # by run; a query without a name is shown by the start of its id
        self._metrics: dict[str, PipelineMetrics] = {}
        self._states: dict[str, QueryState] = {}
        if view is not None and view.is_live:
            safely(silence_bar, spark)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # After Ctrl-C the JVM may not answer, and the session ends anyway.
        self._clear() if kind is KeyboardInterrupt else self.stop()

    def stop(self) -> None:
        self._spark.streams.removeListener(self)
        self._clear()

    def _clear(self) -> None:
        for name in list(self._states):
            self._close(name)

    def onQueryStarted(self, event: Any) -> None:
        safely(self._started, event)

    def onQueryProgress(self, event: Any) -> None:
        safely(self._progressed, event)

    def onQueryIdle(self, event: Any) -> None:
        """Idle triggers are not shown."""

    def onQueryTerminated(self, event: Any) -> None:
        safely(self._terminated, event)

    def _started(self, event: Any) -> None:
        name = event.name or str(event.id)[:8]
        self._names[str(event.runId)] = name
        self._metrics[name] = PipelineMetrics(name)
        self._states[name] = QueryState(name)
        self._say(name, "started")

    def _progressed(self, event: Any) -> None:
        progress = event.progress
        name = self._names.get(str(progress.runId)) or progress.name or str(progress.id)[:8]
        state = self._states.setdefault(name, QueryState(name))
        metrics = self._metrics.setdefault(name, PipelineMetrics(name))
        offsets = [offset for offset in map(_offset, progress.sources) if offset is not None]
        state.step = f"batch {progress.batchId}"
        state.rows, state.seconds = progress.numInputRows, progress.batchDuration / 1000
        state.rate = state.rows / state.seconds if state.seconds else 0.0
        state.total += state.rows
        state.lost = sum(offset.lost for offset in offsets)
        metrics.batch(rows=state.rows, seconds=state.seconds, rows_per_second=state.rate, lost=state.lost)
        if offsets:
            state.lag = _lag(progress, offsets) if state.rows else 0.0
            metrics.behind(state.lag)
        if progress.stateOperators:
            kept = sum(one.numRowsTotal for one in progress.stateOperators)
            duplicates = sum(_duplicates(one) for one in progress.stateOperators)
            state.duplicates += duplicates
            metrics.remembered(kept, duplicates)
        counts = BATCH_COUNTS.take(str(progress.id), progress.batchId)
        if counts is not None:
            add_counts(counts, state, metrics)
        if self._view is not None:
            self._view.show(state)

    def _terminated(self, event: Any) -> None:
        name = self._names.pop(str(event.runId), str(event.id)[:8])
        state = self._close(name) or QueryState(name)
        if event.exception:
            reason = redact(str(event.exception).strip().splitlines()[0])
            self._say(name, f"[red]failed[/] after {state.total:,} rows", reason)
        else:
            self._say(name, f"ended after {state.total:,} rows")

    def _close(self, name: str) -> QueryState | None:
        self._metrics.pop(name, None)
        if self._view is not None:
            self._view.close(name)
        return self._states.pop(name, None)

    def _say(self, name: str, what: str, detail: str = "") -> None:
        if self._view is not None:
            self._view.say(name, what, detail)


def add_counts(counts: Counts, state: QueryState, metrics: PipelineMetrics) -> None:
    """Add the counts of a batch to the shown state and to the metrics."""
    for tally, numbers in counts.items():
        state.counts.setdefault(tally, Counter()).update(numbers)
        metrics.count(tally.metric, tally.help, numbers, tally.label)


def silence_bar(spark: SparkSession) -> None:
    """Stop Spark's own progress bar, which writes to the same lines of the terminal."""
    context: Any = spark.sparkContext
    bar = context._jsc.sc().progressBar()
    if bar.isDefined():
        bar.get().stop()


def _offset(source: Any) -> Offset | None:
    """Return the end offset of the micro-batch if the source is `format("conquiet")`, otherwise None."""
    try:
        return Offset.from_dict(json.loads(source.endOffset))
    except (TypeError, KeyError, ValueError):
        return None


def _lag(progress: Any, offsets: list[Offset]) -> float:
    """Return the age of the newest entry when the micro-batch ended. An id begins with its time in milliseconds."""
    began = datetime.fromisoformat(progress.timestamp).timestamp()
    newest = max((int(one.newest.partition("-")[0]) for one in offsets), default=0) / 1000
    return max(0.0, began + float(progress.batchDuration) / 1000 - newest)


def _duplicates(operator: Any) -> int:
    return int(operator.customMetrics.get("numDroppedDuplicateRows", 0))
