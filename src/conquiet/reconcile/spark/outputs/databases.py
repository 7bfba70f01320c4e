"""Outputs as database tables: PostgreSQL, through COPY, or a SQLite file on a local master."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from conquiet.errors import ReconcileConfigError, StagingLostError
from conquiet.reconcile.spark.outputs.tables import (
    TABLES,
    OutputTable,
    creation,
    publication,
    staged_count,
    staging_name,
)
from conquiet.redaction import misread_url, redact_dsn
from conquiet.spark.databases import SqliteFile, copy_lines, postgres_transaction
from conquiet.sqlite_files import transaction

if TYPE_CHECKING:
    from pyarrow import RecordBatch

__all__ = ["OutputDatabase", "new_run", "output_database"]

_LEFT_SECONDS = 86_400  # older staging tables are leftovers of a killed driver


class OutputDatabase(Protocol):
    """Each call opens its own connection, because Spark copies this object to other processes."""

    def prepare(self, run: str) -> None:
        """Create the tables if they do not exist, and the staging tables of this run."""

    def stage(self, batches: Iterator[RecordBatch], table: OutputTable, run: str) -> int:
        """Stage rows and return their number. Called on an executor."""

    def publish(self, run: str, rows: Mapping[str, int]) -> None:
        """Insert the staged rows, at least `rows` for each table, in one transaction."""

    def discard(self, run: str) -> None:
        """Remove the staged rows."""


def new_run(name: str) -> str:
    """Return the prefix of a run's staging tables: its start time and its name."""
    return f"{int(time.time())}_{name}"


def output_database(dsn: str) -> OutputDatabase:
    if misread := misread_url(dsn):
        raise ReconcileConfigError(f"{redact_dsn(dsn)!r} cannot be used for outputs: {misread}")
    if dsn.startswith("sqlite:///"):
        return SqliteOutputs(SqliteFile(dsn))
    if dsn.startswith(("postgresql://", "postgres://")):
        return PostgresOutputs(dsn)
    raise ReconcileConfigError(
        f"outputs go to a folder, to postgresql://user:password@host/database or to sqlite:///file.db, not to {redact_dsn(dsn)}"
    )


@dataclass(frozen=True, repr=False)
class PostgresOutputs:
    dsn: str

    def prepare(self, run: str) -> None:
        with postgres_transaction(self.dsn, "prepare the tables") as connection:
            # Two runs that start at the same time must not both create the tables.
            connection.execute("SELECT pg_advisory_xact_lock(7305813)")
            for table in TABLES:
                connection.execute(creation(table, _POSTGRES_TYPES))
                # Unlogged: a server crash empties the table, which publishing detects by counting.
                connection.execute(
                    f"CREATE UNLOGGED TABLE {staging_name(table, run)} (LIKE {table.full_name})"
                )
            for (left,) in connection.execute(_LEFT_ON_POSTGRES).fetchall():
                if _is_left(left):
                    connection.execute(f"DROP TABLE IF EXISTS {left}")

    def stage(self, batches: Iterator[RecordBatch], table: OutputTable, run: str) -> int:
        rows = 0
        command = f"COPY {staging_name(table, run)} ({', '.join(table.columns)}) FROM STDIN"
        with (
            postgres_transaction(self.dsn, f"stage {table.name}") as connection,
            connection.cursor().copy(command) as copy,
        ):
            for batch in batches:
                copy.write(copy_lines(*batch.columns))
                rows += batch.num_rows
        return rows

    def publish(self, run: str, rows: Mapping[str, int]) -> None:
        with postgres_transaction(self.dsn, "publish") as connection:
            # If two runs have the same attempts, the second must see the rows of the first.
            connection.execute("LOCK TABLE conquiet_verdicts IN SHARE ROW EXCLUSIVE MODE")
            _publish(connection, run, rows)

    def discard(self, run: str) -> None:
        with postgres_transaction(self.dsn, "discard") as connection:
            _discard(connection, run)


@dataclass(frozen=True)
class SqliteOutputs:
    """SQLite has one writer at a time, so a task holds the write lock for one Arrow batch at a time."""

    file: SqliteFile

    def prepare(self, run: str) -> None:
        with self.file.transaction("prepare the tables") as connection:
            for table in TABLES:
                connection.execute(creation(table, _SQLITE_TYPES))
                columns = ", ".join(table.columns)
                connection.execute(f"CREATE TABLE {staging_name(table, run)} ({columns})")
            for (left,) in connection.execute(_LEFT_ON_SQLITE).fetchall():
                if _is_left(left):
                    connection.execute(f"DROP TABLE {left}")

    def stage(self, batches: Iterator[RecordBatch], table: OutputTable, run: str) -> int:
        import pyarrow as pa

        rows = 0
        places = ", ".join("?" for _ in table.columns)
        command = f"INSERT INTO {staging_name(table, run)} VALUES ({places})"  # noqa: S608 - our own names
        with self.file.open() as connection:
            for batch in batches:
                columns = (
                    # SQLite has no time type. Times are written as SQLAlchemy does, in UTC and without a zone.
                    (
                        column.cast(pa.timestamp("us")).cast(pa.string()) if kind == "time" else column
                    ).to_pylist()
                    for column, kind in zip(batch.columns, table.columns.values(), strict=True)
                )
                with transaction(connection, f"stage {table.name}"):
                    connection.executemany(command, zip(*columns, strict=True))
                rows += batch.num_rows
        return rows

    def publish(self, run: str, rows: Mapping[str, int]) -> None:
        with self.file.transaction("publish") as connection:
            _publish(connection, run, rows)

    def discard(self, run: str) -> None:
        with self.file.transaction("discard") as connection:
            _discard(connection, run)


def _publish(connection: Any, run: str, rows: Mapping[str, int]) -> None:
    for table in TABLES:
        (found,) = connection.execute(staged_count(table, run)).fetchone()
        if found < rows[table.name]:
            raise StagingLostError(
                f"only {found:,} of {rows[table.name]:,} staged rows of {table.name} exist; nothing was saved. The "
                "database crashed and lost the others: save the outputs again"
            )
    for statement in publication(run):
        connection.execute(statement)


def _discard(connection: Any, run: str) -> None:
    for table in TABLES:
        connection.execute(f"DROP TABLE IF EXISTS {staging_name(table, run)}")


def _is_left(staging: str) -> bool:
    began = staging.removeprefix("conquiet_staged_").partition("_")[0]
    return began.isdigit() and int(began) < time.time() - _LEFT_SECONDS


_POSTGRES_TYPES = {"bigint": "bigint", "double": "float8", "text": "text", "time": "timestamptz"}
_SQLITE_TYPES = {"bigint": "INTEGER", "double": "REAL", "text": "TEXT", "time": "TEXT"}
assert (
    set(_POSTGRES_TYPES)
    == set(_SQLITE_TYPES)
    == {kind for table in TABLES for kind in table.columns.values()}
)

_LEFT_ON_POSTGRES = r"""
SELECT quote_ident(tablename) FROM pg_tables
WHERE schemaname = current_schema() AND tablename LIKE 'conquiet\_staged\_%'
"""
_LEFT_ON_SQLITE = (
    r"SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE 'conquiet\_staged\_%' ESCAPE '\'"
)
