"""The alerts that a stream has raised: a set of (report_id, status), kept as Parquet in the checkpoint.

Each micro-batch adds a run. When there are many runs of one rank, they are merged into one of the next rank, so that
after a million micro-batches only a few dozen folders have to be read. A run counts once it is complete, and a key may
be in two runs: a driver that is killed at any point leaves a correct set.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from conquiet.spark.folders import is_complete, names_in, remove

__all__ = ["AlertMemory"]

_KEY = ["report_id", "status"]
_SCHEMA = "report_id BIGINT, status STRING, raised_at TIMESTAMP, batch BIGINT"
_FITS_AN_EXECUTOR = 1_000_000  # keys: about 50 MB


class _Run(NamedTuple):
    rank: int
    newest: int
    """The number of the last micro-batch in the run."""

    @property
    def name(self) -> str:
        return f"rank={self.rank}-{self.newest}"


@dataclass(frozen=True)
class AlertMemory:
    """The raised alerts, kept for `remember`, an interval such as `7 days`."""

    folder: str
    remember: str
    many: int = 16
    """How many runs of the same rank are merged."""

    def unraised(self, alerts: DataFrame, number: int, as_of: datetime, *, at_most: int) -> DataFrame:
        """Return the `alerts` that no micro-batch before `number` raised. There are `at_most` that many alerts."""
        spark = alerts.sparkSession
        runs = self._complete(spark)
        if not runs:
            return alerts
        raised = self._read(spark, runs).where((f.col("batch") < number) & self._is_remembered(as_of))
        wanted = alerts.select(*_KEY)
        if at_most <= _FITS_AN_EXECUTOR:
            wanted = f.broadcast(wanted)  # so that the larger side, the raised alerts, is not shuffled
        return alerts.join(raised.join(wanted, _KEY, "left_semi"), _KEY, "left_anti")

    def add(self, alerts: DataFrame, number: int, as_of: datetime) -> None:
        """Remember the alerts that micro-batch `number` has raised."""
        spark = alerts.sparkSession
        now, batch = f.lit(as_of).alias("raised_at"), f.lit(number).cast("bigint").alias("batch")
        self._write(alerts.select(*_KEY, now, batch), _Run(0, number))
        rank = 0
        while len(runs := [run for run in self._complete(spark) if run.rank == rank]) >= self.many:
            merged = self._read(spark, runs).where(self._is_remembered(as_of))
            self._write(merged, _Run(rank + 1, runs[-1].newest))
            for run in runs:  # the merged run contains all of them, so a crash in between does no harm
                remove(spark, self._path(run))
            rank += 1

    def _complete(self, spark: SparkSession) -> list[_Run]:
        names = [name for name in names_in(spark, self.folder) if name.startswith("rank=")]
        runs = (_Run(*map(int, name.removeprefix("rank=").split("-"))) for name in names)
        return sorted(run for run in runs if is_complete(spark, self._path(run)))

    def _read(self, spark: SparkSession, runs: list[_Run]) -> DataFrame:
        return spark.read.schema(_SCHEMA).parquet(*map(self._path, runs))

    def _write(self, keys: DataFrame, run: _Run) -> None:
        keys.coalesce(self.many**run.rank).write.mode("overwrite").parquet(self._path(run))

    def _is_remembered(self, as_of: datetime) -> Column:
        return f.col("raised_at") >= f.lit(as_of) - f.lit(self.remember).cast("interval")

    def _path(self, run: _Run) -> str:
        return f"{self.folder}/{run.name}"
