"""Progress of a batch: the rows that Spark has read so far and, at the end, the rows written."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from pyspark.sql import SparkSession

from conquiet.observe import PipelineMetrics, safely
from conquiet.reconcile.spark.batch import ReconcileOutputs
from conquiet.reconcile.spark.counts import CountedOutputs
from conquiet.spark.progress import QueryState, View, add_counts, silence_bar, stderr_view

__all__ = ["show_batch"]

_EVERY_SECONDS = 0.5
_TOLD_MS = 10_000


@contextmanager
def show_batch(
    outputs: ReconcileOutputs, name: str = "reconciliation", *, terminal: bool = True
) -> Iterator[ReconcileOutputs]:
    """Return the same outputs, but counted. Write them inside the block.

    A terminal shows progress while the block runs. At the end the metrics are updated and, if `terminal`, a line on
    standard error shows verdicts and quarantine. All work that Spark does meanwhile is attributed to this batch.
    """
    view = stderr_view() if terminal else None
    with shown(outputs, name, view) as tables:
        yield tables


@contextmanager
def shown(outputs: ReconcileOutputs, name: str, view: View | None) -> Iterator[ReconcileOutputs]:
    spark = outputs.verdicts.sparkSession
    state, metrics = QueryState(name), PipelineMetrics(name)
    counted = CountedOutputs(outputs)
    work = _Work(spark)
    began = time.monotonic()

    def look(*, at_all: bool = False) -> None:
        work.look_at_all() if at_all else work.look()
        state.seconds = time.monotonic() - began
        state.step, state.total = f"{work.tasks_done:,} of {work.tasks:,} tasks", work.rows_read
        state.rate = state.total / state.seconds if state.seconds else 0.0

    ended = threading.Event()
    watcher = None
    if view is not None and view.is_live:
        safely(silence_bar, spark)
        watcher = threading.Thread(target=_watch, args=(ended, look, view, state), daemon=True)
        watcher.start()
    try:
        yield counted.tables
    finally:
        ended.set()
        if watcher is not None:
            watcher.join()
        if view is not None:
            view.close(name)
    safely(_wait_until_told, spark)
    safely(lambda: look(at_all=True))
    safely(lambda: add_counts(counted.counts(seconds=0), state, metrics))
    state.rows = state.total
    metrics.batch(rows=state.rows, seconds=state.seconds, rows_per_second=state.rate)
    if view is not None:
        view.say(name, state.line())


def _watch(ended: threading.Event, look: Any, view: View, state: QueryState) -> None:
    while not ended.wait(_EVERY_SECONDS):
        safely(look)
        safely(view.show, state)


class _Work:
    """The stages that Spark has run since this object was created, from the status store of Spark's own UI."""

    def __init__(self, spark: SparkSession) -> None:
        context: Any = spark.sparkContext
        self._store = context._jsc.sc().statusStore()
        self._before = max((stage.stageId() for stage in self._all()), default=-1)
        self._stages: dict[int, _Stage] = {}

    def look(self) -> None:
        """Update the stages that run now, and those that ran at the last call."""
        numbers = {stage.stageId() for stage in _items(self._store.activeStages())}
        numbers |= {number for number, stage in self._stages.items() if not stage.over}
        for number in numbers:
            self._note(self._store.lastStageAttempt(number))

    def look_at_all(self) -> None:
        for stage in self._all():
            self._note(stage)

    @property
    def rows_read(self) -> int:
        return sum(stage.rows_read for stage in self._stages.values())

    @property
    def tasks(self) -> int:
        return sum(stage.tasks for stage in self._stages.values())

    @property
    def tasks_done(self) -> int:
        return sum(stage.tasks_done for stage in self._stages.values())

    def _note(self, stage: Any) -> None:
        if stage.stageId() > self._before and (status := str(stage.status())) != "SKIPPED":
            over = status in ("COMPLETE", "FAILED")
            numbers = (stage.inputRecords(), stage.numTasks(), stage.numCompleteTasks())
            self._stages[stage.stageId()] = _Stage(*numbers, over)

    def _all(self) -> Iterator[Any]:
        no_quantiles = getattr(self._store, "stageList$default$4")()
        return _items(self._store.stageList(None, False, False, no_quantiles, None))


class _Stage(NamedTuple):
    rows_read: int
    tasks: int
    tasks_done: int
    over: bool


def _items(sequence: Any) -> Iterator[Any]:
    """Iterate over a Scala sequence."""
    return (sequence.apply(place) for place in range(sequence.size()))


def _wait_until_told(spark: SparkSession) -> None:
    """Wait until Spark has delivered all events to its listeners, which receive the counts."""
    context: Any = spark.sparkContext
    context._jsc.sc().listenerBus().waitUntilEmpty(_TOLD_MS)
