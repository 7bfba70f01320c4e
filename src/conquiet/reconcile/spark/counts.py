"""Counts of written verdicts, alerts, retries and quarantined rows, taken during the writes."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as f

from conquiet.reconcile import Status
from conquiet.reconcile.spark.batch import JudgedOutputs, ReconcileOutputs
from conquiet.spark.progress import ROWS, WAIT_SECONDS, CountedFrame, Counts, Tally

__all__ = ["CountedOutputs"]

_VERDICTS: Final = Tally("verdicts", "Verdicts by their status", label="status", heading="verdicts")
_ROWS_OF: Final = {
    "alerts": Tally("alerts", "Alerts raised", words="alerts", heading="alerts"),
    "retries": Tally("retries", "Reports to be judged again later", words="retries"),
    "quarantine": Tally(
        "quarantined",
        "Rows that could not be judged",
        words="in quarantine",
        heading="quarantine",
        is_warning=True,
    ),
}


class CountedOutputs:
    """`tables` are the outputs, with rows counted as they are written."""

    def __init__(self, outputs: ReconcileOutputs) -> None:
        self._frames = {
            name: CountedFrame(frame, *(_by_status() if name == "verdicts" else ()))
            for name, frame in outputs._asdict().items()
        }
        self.tables = type(outputs)(*(frame.rows for frame in self._frames.values()))
        if isinstance(outputs, JudgedOutputs) and isinstance(self.tables, JudgedOutputs):
            self.tables.rows, self.tables.as_of = outputs.rows, outputs.as_of

    def counts(self, seconds: float = WAIT_SECONDS) -> Counts:
        """Return the counts of the tables written so far. Waits at most `seconds` for Spark to report each."""
        found = {name: frame.counts(seconds) for name, frame in self._frames.items()}
        verdicts = {name.value: found["verdicts"][name] for name in Status if found["verdicts"].get(name)}
        return {_VERDICTS: verdicts} | {
            tally: {"": found[table].get(ROWS, 0)} for table, tally in _ROWS_OF.items()
        }


def _by_status() -> list[Column]:
    return [f.count_if(f.col("status") == name.value).alias(name.value) for name in Status]
