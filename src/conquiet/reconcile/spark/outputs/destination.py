"""Saves the outputs of a batch as Parquet by day or as database tables."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, SparkSession
from pyspark.storagelevel import StorageLevel

from conquiet.errors import ReconcileConfigError, StoreUnavailableError
from conquiet.reconcile.spark.batch import JudgedOutputs, ReconcileOutputs, moment_of
from conquiet.reconcile.spark.outputs.databases import OutputDatabase, new_run, output_database
from conquiet.reconcile.spark.outputs.parquet import write_table
from conquiet.reconcile.spark.outputs.tables import TABLES, OutputTable, prepared

if TYPE_CHECKING:
    from pyarrow import RecordBatch

__all__ = ["save_outputs"]


def save_outputs(outputs: ReconcileOutputs, to: str, *, as_of: datetime | None = None) -> None:
    """Write all outputs of `reconcile_batch` to a folder or a database.

    A folder gets Parquet in `<table>/day=…/batch=…`, as `reconcile_stream` writes it. Day and batch are those of `as_of`;
    saving a batch again replaces it. `postgresql://user:password@host/database` and `sqlite:///file.db` get the tables
    `conquiet_verdicts`, `conquiet_trust`, …, all in one transaction; nothing is added for an attempt that is already
    stored. A folder also accepts outputs that were changed after `reconcile_batch` returned them; `as_of` must then
    give the time at which they were judged.
    """
    moment = _moment(outputs, as_of)
    with _computed_once(outputs):
        if to.partition("://")[0] not in _DATABASES:
            _save_files(outputs, to.rstrip("/"), moment)
        elif isinstance(outputs, JudgedOutputs):
            _save_tables(outputs, to, moment)
        else:
            raise ReconcileConfigError("a database accepts only outputs as reconcile_batch returned them")


_DATABASES = ("postgresql", "postgres", "sqlite")


def _save_files(outputs: ReconcileOutputs, folder: str, moment: datetime) -> None:
    batch = f"{moment:%Y%m%dT%H%M%S.%fZ}"
    for table, frame in outputs._asdict().items():
        write_table(frame, folder, table, moment, batch)


def _save_tables(outputs: JudgedOutputs, dsn: str, moment: datetime) -> None:
    database = output_database(dsn)
    if dsn.startswith("sqlite:") and not _is_local(outputs.verdicts.sparkSession):
        raise ReconcileConfigError(
            "sqlite:// is a file, which executors elsewhere do not have: use it on a local master (local[*]) only, and "
            "postgresql://user:password@host/database on a cluster"
        )
    # The first alert of a report may belong to an attempt that is already stored, so the database chooses it.
    frames = outputs._asdict() | {"alerts": outputs.alerts_of_attempts}
    run = new_run(secrets.token_hex(4))
    database.prepare(run)
    try:
        rows = {
            table.name: _staged(prepared(frames[table.name], table, moment), database, table, run)
            for table in TABLES
        }
        database.publish(run, rows)
    except BaseException as failure:
        try:
            database.discard(run)
        except StoreUnavailableError as error:
            failure.add_note(f"the staged rows stay until outputs are saved at least a day later: {error}")
        raise


def _staged(frame: DataFrame, database: OutputDatabase, table: OutputTable, run: str) -> int:
    """Stage a table and return its number of rows. Rows staged twice by a repeated task count once."""
    counts = frame.mapInArrow(_Stage(database, table, run), "rows bigint").collect()
    return sum(count.rows for count in counts)


@dataclass(frozen=True)
class _Stage:
    """Spark calls this for each partition, on an executor."""

    database: OutputDatabase
    table: OutputTable
    run: str

    def __call__(self, batches: Iterator[RecordBatch]) -> Iterator[RecordBatch]:
        import pyarrow as pa

        rows = self.database.stage(batches, self.table, self.run)
        yield pa.RecordBatch.from_arrays([pa.array([rows], pa.int64())], ["rows"])


@contextmanager
def _computed_once(outputs: ReconcileOutputs) -> Iterator[None]:
    """Cache the judged rows while the outputs are written: all outputs are selected from them."""
    rows = outputs.rows if isinstance(outputs, JudgedOutputs) else None
    if rows is None or rows.is_cached:
        yield
        return
    rows.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        yield
    finally:
        rows.unpersist()


def _moment(outputs: ReconcileOutputs, as_of: datetime | None) -> datetime:
    if as_of is not None:
        return moment_of(as_of)
    if isinstance(outputs, JudgedOutputs):
        return outputs.as_of
    raise ReconcileConfigError(
        "the time at which these reports were judged is not known: use save_outputs(…, as_of=…)"
    )


def _is_local(spark: SparkSession) -> bool:
    master = spark.sparkContext.master or ""
    return master.startswith("local") and not master.startswith("local-cluster")
