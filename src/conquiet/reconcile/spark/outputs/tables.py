"""The database tables of outputs: their columns, and the statements that publish staged rows.

Rows are first written to staging tables of the run and inserted into the tables in one transaction. The run that inserts
the verdict on an attempt also inserts its trust, alerts and retries. For attempts that are already stored nothing is
inserted, even if the verdict now differs. So a replay changes nothing, and the tables never contradict each other.
"""

# ruff: noqa: S608 - the names are constants and the run's generated prefix
from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f

__all__ = ["TABLES", "OutputTable", "creation", "prepared", "publication", "staged_count", "staging_name"]

Kind = Literal["bigint", "double", "text", "time"]


@dataclass(frozen=True)
class OutputTable:
    name: str
    columns: Mapping[str, Kind]
    key: tuple[str, ...]
    judged_attempt: str | None = None  # the attempt that a row results from, as SQL; None: no attempt
    first_by: str | None = (
        None  # among rows with the same key, the first by this column is inserted; None: they are identical
    )

    @property
    def full_name(self) -> str:
        return f"conquiet_{self.name}"


_ATTEMPT: Final = ("report_id", "attempt")
_VERDICTS: Final = OutputTable(
    "verdicts",
    {
        "report_id": "bigint",
        "attempt": "bigint",
        "affiliate_id": "text",
        "platform": "text",
        "status": "text",
        "level": "text",
        "max_diff": "double",
        "confidence": "double",
        "trust_event": "text",
        "trust_delta": "bigint",
        "missing_fields": "text",
        "scheduled_retry_at": "time",
        "judged_at": "time",
    },
    _ATTEMPT,
)
_TRUST: Final = OutputTable(
    "trust",
    {
        "report_id": "bigint",
        "attempt": "bigint",
        "affiliate_id": "text",
        "event": "text",
        "delta_hundredths": "bigint",
        "recorded_at": "time",
    },
    _ATTEMPT,
    judged_attempt="attempt",
)
_ALERTS: Final = OutputTable(
    "alerts",
    {
        "report_id": "bigint",
        "status": "text",
        "attempt": "bigint",
        "kind": "text",
        "severity": "text",
        "raised_at": "time",
    },
    ("report_id", "status"),
    judged_attempt="attempt",
    first_by="attempt",
)
_RETRIES: Final = OutputTable(
    "retries",
    {
        "report_id": "bigint",
        "attempt": "bigint",
        "affiliate_id": "text",
        "platform": "text",
        "post_id": "text",
        "claimed_views": "bigint",
        "claimed_clicks": "bigint",
        "claimed_conversions": "bigint",
        "submitted_at": "time",
        "scheduled_retry_at": "time",
    },
    _ATTEMPT,
    judged_attempt="attempt - 1",
)
_QUARANTINE: Final = OutputTable(
    "quarantine",
    {
        "id": "text",
        "source": "text",
        "position": "text",
        "raw": "text",
        "reason": "text",
        "judged_at": "time",
    },
    ("id",),
)
TABLES: Final = (_VERDICTS, _TRUST, _ALERTS, _RETRIES, _QUARANTINE)


def prepared(frame: DataFrame, table: OutputTable, as_of: datetime) -> DataFrame:
    """Return an output with the columns of its table."""
    if table is _QUARANTINE:
        frame = _with_ids(frame)
    if table is _VERDICTS:
        frame = frame.withColumn("missing_fields", f.array_join("missing_fields", ","))
    if "judged_at" in table.columns:
        frame = frame.withColumn("judged_at", f.lit(as_of))
    return frame.select(
        *(
            f.col(name).cast("bigint").alias(name) if kind == "bigint" else name
            for name, kind in table.columns.items()
        )
    )


def _with_ids(quarantine: DataFrame) -> DataFrame:
    """Add an id that is the same in a replay; identical rows are numbered. NUL, which PostgreSQL cannot store, is
    replaced.
    """
    names = ["source", "position", "raw", "reason"]
    texts = quarantine.select(*(f.translate(name, "\0", "\ufffd").alias(name) for name in names))
    number = f.row_number().over(Window.partitionBy(*names).orderBy(*names))
    whole = f.to_json(f.array(*(f.coalesce(name, f.lit("")) for name in names), number.cast("string")))
    return texts.withColumn("id", f.sha2(whole, 256))


def staging_name(table: OutputTable, run: str) -> str:
    return f"conquiet_staged_{run}_{table.name}"


def staged_count(table: OutputTable, run: str) -> str:
    return f"SELECT count(*) FROM {staging_name(table, run)}"


def creation(table: OutputTable, types: Mapping[str, str]) -> str:
    """Return the statement that creates the table if it does not exist."""
    not_null = set(table.key)
    columns = ", ".join(
        f"{name} {types[kind]}{' NOT NULL' if name in not_null else ''}"
        for name, kind in table.columns.items()
    )
    return f"CREATE TABLE IF NOT EXISTS {table.full_name} ({columns}, PRIMARY KEY ({', '.join(table.key)}))"


def publication(run: str) -> Iterator[str]:
    """Yield the statements that insert the staged rows of a run, in order; the same for both databases."""
    verdicts = staging_name(_VERDICTS, run)
    # A task that Spark repeats after it staged its rows stages them twice.
    yield (
        "CREATE TEMPORARY TABLE conquiet_fresh (report_id bigint, attempt bigint, PRIMARY KEY (report_id, attempt))"
    )
    yield f"""
        INSERT INTO conquiet_fresh (report_id, attempt) SELECT report_id, attempt FROM {verdicts} AS staged
        WHERE NOT EXISTS (
            SELECT 1 FROM {_VERDICTS.full_name} AS known
            WHERE known.report_id = staged.report_id AND known.attempt = staged.attempt
        ) ON CONFLICT DO NOTHING"""
    for table in TABLES:
        names = ", ".join(table.columns)
        fresh = "true"
        if table.judged_attempt is not None:
            fresh = f"""EXISTS (
                SELECT 1 FROM conquiet_fresh WHERE conquiet_fresh.report_id = staged.report_id
                AND conquiet_fresh.attempt = staged.{table.judged_attempt}
            )"""
        yield f"""
            INSERT INTO {table.full_name} ({names}) SELECT {names} FROM {staging_name(table, run)} AS staged
            WHERE {fresh}{f" ORDER BY {table.first_by}" if table.first_by else ""} ON CONFLICT DO NOTHING"""
        yield f"DROP TABLE {staging_name(table, run)}"
    yield "DROP TABLE conquiet_fresh"
