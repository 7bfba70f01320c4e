"""Encodes whole rows as JSON objects, for DataFrames without a column of JSON.

As in Spark's own `to_json`, nulls are left out, binary is base64, dates and times are ISO 8601 (times in UTC, to the
microsecond, with Z; timestamps without a time zone have no Z). Unlike `to_json`, NaN and infinities are refused, not
written as strings. `to_json` runs in the JVM and is faster; use it to create a column `data`.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    FractionalType,
    IntegralType,
    MapType,
    NullType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from conquiet.errors import PayloadError, QueueConfigError, QueuePayloadError
from conquiet.payload import encode

__all__ = ["JsonRows"]

Converter = Callable[[Any], Any] | None  # None: unchanged


class JsonRows:
    """Encodes rows of one schema. The constructor refuses column types that have no JSON form."""

    def __init__(self, schema: StructType) -> None:
        self._schema = schema
        self._converter()

    def encoded(self, batch: pa.RecordBatch) -> pa.Array:
        """Return a JSON object for each row."""
        convert = self._converter()
        texts = []
        for row in _rows(batch):
            try:
                texts.append(encode(row if convert is None else convert(row)))
            except PayloadError as error:
                raise QueuePayloadError(
                    f"a row cannot be written: {error}. Nothing is published: leave such rows out, or repair them"
                ) from None
        return pa.array(texts, pa.large_binary())

    def _converter(self) -> Converter:
        return _struct(self._schema, "row")


def _rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    try:
        return batch.to_pylist(maps_as_pydicts="strict")  # type: ignore[no-any-return]
    except (ValueError, OverflowError, KeyError) as error:  # the message may quote values
        raise QueuePayloadError(
            f"a row cannot be written ({type(error).__name__}): a text in it is not UTF-8, a time is outside the years 1 to "
            "9999, or a map has a key twice. Nothing is published: leave such rows out, or repair them"
        ) from None


def _converter(kind: DataType, name: str) -> Converter:
    """Return the function that converts values of a type to JSON. `name` is the column's, for the error message."""
    if isinstance(kind, DecimalType):
        return _decimal
    if isinstance(kind, StringType | IntegralType | FractionalType | BooleanType | NullType):
        return None
    for types, convert in _CONVERTERS.items():
        if isinstance(kind, types):
            return convert
    if isinstance(kind, StructType):
        return _struct(kind, name)
    if isinstance(kind, ArrayType):
        return _each(_converter(kind.elementType, name))
    if isinstance(kind, MapType) and isinstance(kind.keyType, StringType):
        return _values(_converter(kind.valueType, name))
    raise QueueConfigError(
        f"the column {name} is {kind.simpleString()}, which has no JSON form here: cast it, or make a column data "
        "with to_json(…)"
    )


def _struct(kind: StructType, name: str) -> Converter:
    inner = {field.name: _converter(field.dataType, field.name) for field in kind.fields}

    def convert(row: dict[str, Any]) -> dict[str, Any]:
        return {
            key: value if (change := inner[key]) is None else change(value)
            for key, value in row.items()
            if value is not None
        }

    return convert


def _each(inner: Converter) -> Converter:
    if inner is None:
        return None
    return lambda items: [None if item is None else inner(item) for item in items]


def _values(inner: Converter) -> Converter:
    if inner is None:
        return None
    return lambda items: {key: None if value is None else inner(value) for key, value in items.items()}


def _decimal(value: Decimal) -> int | float:
    if value == value.to_integral_value():
        return int(value)
    number = float(value)
    if Decimal(repr(number)) != value:
        raise PayloadError("a decimal has more digits than a JSON number keeps: cast it to string")
    return number


def _binary(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _date(value: date) -> str:
    return value.isoformat()


def _time(value: datetime) -> str:
    return value.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _local_time(value: datetime) -> str:
    return value.isoformat(timespec="microseconds")


_CONVERTERS: dict[type[DataType], Converter] = {
    BinaryType: _binary,
    DateType: _date,
    TimestampType: _time,
    TimestampNTZType: _local_time,
}
