"""The tables of outputs as Parquet files."""

from __future__ import annotations

from datetime import datetime

from pyspark.sql import DataFrame

__all__ = ["write_table"]


def write_table(frame: DataFrame, folder: str, table: str, moment: datetime, batch: str) -> str:
    """Write `frame` to `<folder>/<table>/day=<day of moment>/batch=<batch>` and return that path.

    Writing a batch again replaces it.
    """
    path = f"{folder}/{table}/day={moment.date()}/batch={batch}"
    frame.write.mode("overwrite").parquet(path)
    return path
