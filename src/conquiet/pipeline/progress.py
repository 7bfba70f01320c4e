"""What streaming queries are doing: a line on the terminal and metrics, micro-batch by micro-batch."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener

from conquiet.errors import MissingDependencyError, redact
from conquiet.observe.pipeline_metrics import PipelineMetrics
from conquiet.observe.safely import safely

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["ProgressListener", "show_progress"]


def show_progress(spark: SparkSession, *, terminal: bool = True) -> ProgressListener:
    """Follow every streaming query of this session from now on, until `listener.stop()`.

    Metrics go to prometheus_client's registry, if it is installed; lines go to standard error if `terminal`.
    """
    listener = ProgressListener(spark, _console() if terminal else None)
    spark.streams.addListener(listener)
    return listener


class ProgressListener(StreamingQueryListener):
    """Told by Spark, on a thread of its own. Whatever fails here is logged and never harms a query."""

    def __init__(self, spark: SparkSession, console: Console | None) -> None:
        self._spark = spark
        self._console = console
        self._names: dict[str, str] = {}  # by run; a query without a name goes by the start of its id
        self._metrics: dict[str, PipelineMetrics] = {}
        self._rows: dict[str, int] = {}

    def stop(self) -> None:
        self._spark.streams.removeListener(self)

    def onQueryStarted(self, event: Any) -> None:
        safely(self._started, event)

    def onQueryProgress(self, event: Any) -> None:
        safely(self._progressed, event)

    def onQueryIdle(self, event: Any) -> None:
        """Nothing to say."""

    def onQueryTerminated(self, event: Any) -> None:
        safely(self._terminated, event)

    def _started(self, event: Any) -> None:
        name = event.name or str(event.id)[:8]
        self._names[str(event.runId)] = name
        self._metrics[name] = PipelineMetrics(name)
        self._say(name, "started")

    def _progressed(self, event: Any) -> None:
        progress = event.progress
        name = self._names.get(str(progress.runId)) or progress.name or str(progress.id)[:8]
        rows, seconds = progress.numInputRows, progress.batchDuration / 1000
        lost = sum(map(_lost, progress.sources))
        metrics = self._metrics.setdefault(name, PipelineMetrics(name))
        rate = rows / seconds if seconds else 0.0
        metrics.batch(rows=rows, seconds=seconds, rows_per_second=rate, lost=lost)
        self._rows[name] = total = self._rows.get(name, 0) + rows
        losses = f", [red]{lost:,} entries lost[/]" if lost else ""
        self._say(
            name,
            f"batch {progress.batchId}: {rows:,} rows in {seconds:.1f} s, {rate:,.0f} a second, {total:,} in all"
            + losses,
        )

    def _terminated(self, event: Any) -> None:
        name = self._names.pop(str(event.runId), str(event.id)[:8])
        rows = self._rows.pop(name, 0)
        self._metrics.pop(name, None)
        if event.exception:
            reason = redact(str(event.exception).strip().splitlines()[0])
            self._say(name, f"[red]failed[/] after {rows:,} rows", reason)
        else:
            self._say(name, f"ended after {rows:,} rows")

    def _say(self, name: str, what: str, detail: str = "") -> None:
        if self._console is not None:
            from rich.markup import escape

            self._console.print(f"[bold]{escape(name)}[/] {what}{': ' + escape(detail) if detail else ''}")


def _lost(source: Any) -> int:
    """From the offset of a source of ours; other sources have other offsets."""
    try:
        return int(json.loads(source.endOffset)["lost"])
    except (TypeError, KeyError, ValueError):
        return 0


def _console() -> Console:
    try:
        from rich.console import Console
    except ImportError as error:
        raise MissingDependencyError(
            'progress on the terminal needs rich: pip install "conquiet[cli]", or call show_progress(terminal=False)'
        ) from error
    return Console(stderr=True, highlight=False, soft_wrap=True)
