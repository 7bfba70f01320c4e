"""Checks the rows that become jobs, column by column with Arrow rather than value by value."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import DataType, IntegralType, NumericType, StringType, StructType

from conquiet.checks import MAX_NAME, MAX_SECONDS
from conquiet.errors import JobConfigError
from conquiet.spark.sink.json_texts import first_refused

__all__ = ["COLUMNS", "checked_columns", "checked_rows"]

_TYPES: dict[str, tuple[type[DataType], str, pa.DataType, Any]] = {
    "id": (StringType, "string", pa.string(), None),
    "payload": (StringType, "string of JSON", pa.string(), None),
    "priority": (IntegralType, "whole number", pa.int32(), 5),
    "delay_seconds": (NumericType, "number", pa.float64(), 0.0),
    "correlation_id": (StringType, "string", pa.string(), None),
}
COLUMNS = tuple(_TYPES)
_REQUIRED = ("id", "payload")


def checked_columns(schema: StructType) -> None:
    """Refuse a DataFrame with columns that jobs do not have, or without the required ones."""
    for name in schema.names:
        if name not in _TYPES:
            raise JobConfigError(
                f"jobs have no column {name}: select {', '.join(_REQUIRED)} and, if wanted, {', '.join(COLUMNS[2:])}; "
                "put everything else into payload, with to_json(struct(…))"
            )
        kind, wanted, _, _ = _TYPES[name]
        if not isinstance(schema[name].dataType, kind):
            raise JobConfigError(
                f"the column {name} must be a {wanted}, not {schema[name].dataType.simpleString()}"
            )
    for name in _REQUIRED:
        if name not in schema.names:
            why = "; it identifies a job that is written again" if name == "id" else ""
            raise JobConfigError(f"jobs need a column {name}{why}")


def checked_rows(batch: pa.RecordBatch) -> list[pa.Array]:
    """Return the columns in the order of COLUMNS, with defaults. Raise JobConfigError for the first invalid row."""
    columns = [_column(batch, name) for name in COLUMNS]
    ids, payloads, _, delays, correlation_ids = columns
    _refuse(pc.is_null(ids), "id is null", ids)
    for name, values in (("id", ids), ("correlation_id", correlation_ids)):
        _check_text(name, values)
        lengths = pc.utf8_length(values)
        _refuse(pc.equal(lengths, 0), f"{name} is empty", ids)
        _refuse(pc.greater(lengths, MAX_NAME), f"{name} is longer than {MAX_NAME} characters", ids)
        _refuse(pc.match_substring(values, "\0"), f"{name} holds NUL", ids)
    fits = pc.and_(pc.greater_equal(delays, 0.0), pc.less_equal(delays, MAX_SECONDS))
    _refuse(pc.invert(fits), "delay_seconds is negative, not a number, or over a century", ids)
    if refused := first_refused(payloads):
        raise _refusal(refused[0], f"payload was refused: {refused[1]}", ids)
    return columns


def _column(batch: pa.RecordBatch, name: str) -> pa.Array:
    _, wanted, kind, default = _TYPES[name]
    if name not in batch.schema.names:
        return (
            pa.nulls(len(batch), kind) if default is None else pa.repeat(pa.scalar(default, kind), len(batch))
        )
    try:
        values = batch.column(name).cast(kind)
    except pa.ArrowInvalid:
        raise JobConfigError(
            f"a value of {name} is not a {wanted} that jobs can hold (for example an int of 32 bits)"
        ) from None
    return values if default is None else pc.fill_null(values, default)


def _check_text(name: str, values: pa.Array) -> None:
    """Refuse strings that are not UTF-8, which Spark allows."""
    try:
        values.cast(pa.binary()).cast(pa.string())
    except pa.ArrowInvalid:
        raise JobConfigError(
            f"a value of {name} is not text: its bytes are not UTF-8. Nothing is published: leave such rows out, or encode "
            f"them, for example with hex({name}), before they are written"
        ) from None


def _refuse(wrong: pa.Array, reason: str, ids: pa.Array) -> None:
    row = pc.index(wrong, True).as_py()
    if row >= 0:
        raise _refusal(row, reason, ids)


def _refusal(row: int, reason: str, ids: pa.Array) -> JobConfigError:
    shown = ascii(ids[row].as_py())[:80]
    return JobConfigError(
        f"the row with id {shown} cannot become a job: its {reason}. Nothing is published: leave such rows out, or repair "
        "them, before they are written"
    )
