"""How many verdicts, alerts, … were written: counted by the writes themselves, without a second look at the rows."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as f

from conquiet.reconcile import Status
from conquiet.reconcile.spark.batch import JudgedOutputs, ReconcileOutputs
from conquiet.spark.progress import ROWS, WAIT_SECONDS, CountedFrame, Figures

__all__ = ["CountedOutputs"]

_HUNDREDTHS = "hundredths"


class CountedOutputs:
    """`tables` are the outputs, each a `CountedFrame`."""

    def __init__(self, outputs: ReconcileOutputs) -> None:
        self._frames = {
            name: CountedFrame(frame, *_more_counts(name)) for name, frame in outputs._asdict().items()
        }
        self.tables = type(outputs)(*(frame.rows for frame in self._frames.values()))
        if isinstance(outputs, JudgedOutputs) and isinstance(self.tables, JudgedOutputs):
            self.tables.rows, self.tables.as_of = outputs.rows, outputs.as_of

    def figures(self, seconds: float = WAIT_SECONDS) -> Figures:
        """Of the tables that were written: it waits so long for each of which Spark has not told yet."""
        found = {name: frame.counts(seconds) for name, frame in self._frames.items()}
        return Figures(
            {name.value: found["verdicts"][name] for name in Status if found["verdicts"].get(name)},
            alerts=found["alerts"].get(ROWS, 0),
            retries=found["retries"].get(ROWS, 0),
            quarantined=found["quarantine"].get(ROWS, 0),
            trust_hundredths=found["trust"].get(_HUNDREDTHS) or 0,
        )


def _more_counts(table: str) -> list[Column]:
    if table == "verdicts":
        return [f.count_if(f.col("status") == name.value).alias(name.value) for name in Status]
    if table == "trust":
        return [f.sum("delta_hundredths").alias(_HUNDREDTHS)]
    return []
