"""Reports and platform metrics as DataFrames: column checks, and readers for Parquet, JSON lines and CSV.

A reader adds a column `_origin` with the position of each row and, if the row could not be parsed, the reason. Such
rows are read like all others and end up in quarantine.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import (
    DataType,
    IntegralType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from conquiet.errors import ReconcileConfigError
from conquiet.reconcile import MAX_CLAIM, METRIC_NAMES

__all__ = [
    "ENQUEUED_AT",
    "METRICS",
    "ORIGIN",
    "REPORTS",
    "checked_columns",
    "json_rows",
    "read_metrics",
    "read_reports",
]

ORIGIN: Final = "_origin"
ENQUEUED_AT: Final = "enqueued_at"
REPORTS: Final[Mapping[str, type[DataType]]] = MappingProxyType(
    {
        "report_id": IntegralType,
        "affiliate_id": StringType,
        "platform": StringType,
        "post_id": StringType,
        **{f"claimed_{name}": IntegralType for name in METRIC_NAMES},
        "submitted_at": TimestampType,
        "attempt": IntegralType,
    }
)
METRICS: Final[Mapping[str, type[DataType]]] = MappingProxyType(
    {
        "platform": StringType,
        "post_id": StringType,
        **dict.fromkeys(METRIC_NAMES, IntegralType),
        "observed_at": TimestampType,
    }
)
_CALLED: Final[Mapping[type[DataType], str]] = MappingProxyType(
    {IntegralType: "bigint", StringType: "string", TimestampType: "timestamp"}
)
_NAMES_OF_THINGS: Final = ("report_id", "attempt")  # numbers, but not quantities
_CORRUPT: Final = "_corrupt"
# The zone is required: a time without one is ambiguous.
_TIME: Final = r"\A\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}(:\d{2}(\.\d{1,6})?)?(Z|[+-]\d{2}:\d{2})\z"


def read_reports(spark: SparkSession, path: str, format: str = "parquet") -> DataFrame:
    """Read reports from files. `format` is parquet, json (an object per line) or csv (with a header)."""
    return _read(spark, path, format, REPORTS, "reports")


def read_metrics(spark: SparkSession, path: str, format: str = "parquet") -> DataFrame:
    """Read platform metrics from files. `format` is parquet, json (an object per line) or csv (with a header)."""
    return _read(spark, path, format, METRICS, "metrics")


def checked_columns(rows: DataFrame, columns: Mapping[str, type[DataType]], name: str) -> DataFrame:
    """Return `rows` with exactly these columns and their origin. The error names the first wrong column.

    `attempt` may be missing or null and is then 1. `enqueued_at` is kept if the rows come from a queue.
    """
    found = {field.name: field.dataType for field in rows.schema.fields}
    _refuse_missing(list(found), columns, name)
    chosen = []
    for column, kind in columns.items():
        if column in found and not isinstance(found[column], kind):
            raise ReconcileConfigError(
                f"the column {column} of {name} must be {_CALLED[kind]}, not {found[column].simpleString()}: cast it, or "
                f"let read_{name} read the files, which quarantines what does not fit"
            )
        value = f.col(column) if column in found else f.lit(1)
        if kind is IntegralType:
            value = value.cast("bigint")
        chosen.append((f.coalesce(value, f.lit(1)) if column == "attempt" else value).alias(column))
    return rows.select(*chosen, *(extra for extra in (ENQUEUED_AT, ORIGIN) if extra in found))


def json_rows(
    rows: DataFrame,
    columns: Mapping[str, type[DataType]],
    *,
    text: Column,
    source: Column,
    position: Column,
    keep: tuple[str, ...] = (),
) -> DataFrame:
    """Parse the JSON object in `text` into columns. Values that do not fit are null, and `_origin` has the reason.

    Numbers must be JSON numbers, and times strings with a zone, as at the intake. `keep` names columns to keep.
    """
    fields = [StructField(name, _in_json(kind)) for name, kind in columns.items()]
    schema = StructType([*fields, StructField(_CORRUPT, StringType())])
    parsed = rows.select(
        *keep,
        text.alias("_text"),
        source.alias("_source"),
        position.alias("_position"),
        f.from_json(text, schema, {"columnNameOfCorruptRecord": _CORRUPT}).alias("_row"),
    )
    is_corrupt = f.col(f"_row.{_CORRUPT}").isNotNull() | f.col("_row").isNull()
    wrong_fields = [
        f.when(
            f.get_json_object("_text", f"$.{name}").isNotNull() & f.col(f"_row.{name}").isNull(),
            _refusal(name, kind, f.get_json_object("_text", f"$.{name}")),
        )
        for name, kind in columns.items()
    ]
    malformed = f.coalesce(
        f.when(f.col("_text").isNull(), "not text in UTF-8: an entry without exactly one field data"),
        f.when(is_corrupt, f.coalesce(*wrong_fields, f.lit("not a JSON object"))),
        *_time_refusals(columns, prefix="_row."),
    )
    values = [_value(f.col(f"_row.{name}"), kind).alias(name) for name, kind in columns.items()]
    return parsed.select(*keep, *values, _origin(f.col("_text"), malformed))


def _read(
    spark: SparkSession, path: str, format: str, columns: Mapping[str, type[DataType]], name: str
) -> DataFrame:
    if format == "parquet":
        rows = spark.read.parquet(path)
        _refuse_missing(rows.columns, columns, name)
        return rows.select(
            *(column for column in columns if column in rows.columns),
            f.struct(
                f.col("_metadata.file_path").alias("source"),
                f.concat(f.lit("row "), f.col("_metadata.row_index").cast("string")).alias("position"),
                f.lit(None).cast("string").alias("raw"),
                f.lit(None).cast("string").alias("malformed"),
            ).alias(ORIGIN),
        )
    if format == "json":
        lines = spark.read.text(path)
        file = f.col("_metadata.file_path")
        return json_rows(lines, columns, text=f.col("value"), source=file, position=_split())
    if format == "csv":
        return _csv(spark, path, columns, name)
    raise ReconcileConfigError(f"there is no format {format!r} of {name}: use parquet, json or csv")


def _csv(spark: SparkSession, path: str, columns: Mapping[str, type[DataType]], name: str) -> DataFrame:
    header = spark.read.csv(path, header=True).columns
    _refuse_missing(header, columns, name)
    schema = StructType([StructField(column, StringType()) for column in (*header, _CORRUPT)])
    rows = spark.read.csv(
        path, schema, header=True, enforceSchema=False, columnNameOfCorruptRecord=_CORRUPT, mode="PERMISSIVE"
    ).withColumns({"_source": f.col("_metadata.file_path"), "_position": _split()})
    given = {column: kind for column, kind in columns.items() if column in header}
    malformed = f.coalesce(
        f.when(f.col(_CORRUPT).isNotNull(), "not a line with as many fields as the header"),
        *(
            f.when(f.col(column).isNotNull() & f.col(column).try_cast("bigint").isNull(), refusal)
            for column, kind in given.items()
            if kind is IntegralType
            for refusal in [_refusal(column, kind, f.col(column))]
        ),
        *_time_refusals(given),
    )
    values = [_value(f.col(column), kind).alias(column) for column, kind in given.items()]
    raw = f.coalesce(_CORRUPT, f.to_json(f.struct(*header)))
    return rows.select(*values, _origin(raw, malformed))


def _refuse_missing(found: list[str], columns: Mapping[str, type[DataType]], name: str) -> None:
    for column in columns:
        if column not in found and column != "attempt":
            raise ReconcileConfigError(f"{name} have no column {column}; they have: {', '.join(found)}")


def _split() -> Column:
    """Return the byte range of the split that contains the line: Spark does not count lines."""
    start, length = f.col("_metadata.file_block_start"), f.col("_metadata.file_block_length")
    return f.concat(f.lit("bytes "), start.cast("string"), f.lit("-"), (start + length).cast("string"))


def _origin(raw: Column, malformed: Column) -> Column:
    return f.struct(
        f.col("_source").alias("source"),
        f.col("_position").alias("position"),
        raw.alias("raw"),
        malformed.alias("malformed"),
    ).alias(ORIGIN)


def _in_json(kind: type[DataType]) -> DataType:
    return LongType() if kind is IntegralType else StringType()


def _value(text: Column, kind: type[DataType]) -> Column:
    if kind is IntegralType:
        return text.try_cast("bigint")
    if kind is TimestampType:
        return f.when(text.rlike(_TIME), text.try_cast("timestamp"))
    return text


def _time_refusals(columns: Mapping[str, type[DataType]], prefix: str = "") -> list[Column]:
    refusals = []
    for name, kind in columns.items():
        if kind is TimestampType:
            text = f.col(prefix + name)
            wrong = text.isNotNull() & _value(text, kind).isNull()
            refusals.append(f.when(wrong, _refusal(name, kind, text)))
    return refusals


def _refusal(name: str, kind: type[DataType], text: Column) -> Column:
    if kind is TimestampType:
        rule = "must be a time with a zone, as in 2026-01-31T12:00:00Z"
    elif kind is IntegralType:
        rule = "must be a whole number" + ("" if name in _NAMES_OF_THINGS else f" from 0 to {MAX_CLAIM}")
    else:
        rule = "must be a text"
    return f.concat(f.lit(f"{name} {rule}, not "), f.substring(text, 1, 60))
