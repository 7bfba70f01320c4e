"""Whole rows as JSON."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    CalendarIntervalType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from conquiet.errors import QueueConfigError, QueuePayloadError
from conquiet.spark.sink.json_rows import JsonRows

TYPES = StructType(
    [
        StructField("a", StringType()),
        StructField("i", LongType()),
        StructField("d", DoubleType()),
        StructField("b", BooleanType()),
        StructField("bin", BinaryType()),
        StructField("day", DateType()),
        StructField("at", TimestampType()),
        StructField("local", TimestampNTZType()),
        StructField("price", DecimalType(20, 3)),
        StructField(
            "list", ArrayType(StructType([StructField("x", IntegerType()), StructField("at", DateType())]))
        ),
        StructField("map", MapType(StringType(), DateType())),
        StructField("inner", StructType([StructField("y", StringType()), StructField("z", IntegerType())])),
    ]
)


def batch(rows: list[dict[str, object]], schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, schema)


ARROW = pa.schema(
    [
        ("a", pa.string()),
        ("i", pa.int64()),
        ("d", pa.float64()),
        ("b", pa.bool_()),
        ("bin", pa.binary()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", tz="Europe/Vienna")),
        ("local", pa.timestamp("us")),
        ("price", pa.decimal128(20, 3)),
        ("list", pa.list_(pa.struct([("x", pa.int32()), ("at", pa.date32())]))),
        ("map", pa.map_(pa.string(), pa.date32())),
        ("inner", pa.struct([("y", pa.string()), ("z", pa.int32())])),
    ]
)


def encoded(row: dict[str, object]) -> dict[str, object]:
    rows = JsonRows(TYPES).encoded(batch([row], ARROW))
    decoded: dict[str, object] = json.loads(rows[0].as_py())
    return decoded


def test_every_type_has_its_form() -> None:
    day = date(2026, 2, 28)
    row = {
        "a": "ü",
        "i": 2**62,
        "d": 0.1,
        "b": True,
        "bin": b"\x00\xff",
        "day": day,
        "at": datetime(2026, 1, 2, 3, 4, 5, 6, UTC),
        "local": datetime(2026, 1, 2, 3, 4, 5),
        "price": Decimal("12.500"),
        "list": [{"x": 1, "at": day}, None],
        "map": [("k", day), ("n", None)],
        "inner": {"y": None, "z": 3},
    }
    assert encoded(row) == {
        "a": "ü",
        "i": 2**62,
        "d": 0.1,
        "b": True,
        "bin": "AP8=",
        "day": "2026-02-28",
        "at": "2026-01-02T03:04:05.000006Z",
        "local": "2026-01-02T03:04:05.000000",
        "price": 12.5,
        "list": [{"x": 1, "at": "2026-02-28"}, None],
        "map": {"k": "2026-02-28", "n": None},
        "inner": {"z": 3},
    }


def test_nulls_are_left_out() -> None:
    assert encoded({"a": "x"}) == {"a": "x"}


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"d": float("nan")}, "nan"),
        ({"d": float("-inf")}, "inf"),
        ({"price": Decimal("12345678901234567.125")}, "more digits"),
    ],
)
def test_what_json_cannot_hold_is_refused(row: dict[str, object], reason: str) -> None:
    with pytest.raises(QueuePayloadError, match=reason):
        encoded(row)


def test_a_type_without_a_form_is_refused_at_once() -> None:
    schema = StructType([StructField("span", CalendarIntervalType())])
    with pytest.raises(QueueConfigError, match="the column span is interval"):
        JsonRows(schema)
