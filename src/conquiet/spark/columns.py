"""Parses the payload of an entry into columns."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql.functions import col, from_json
from pyspark.sql.types import ArrayType, MapType, StructType

__all__ = ["payload"]


def payload(schema: StructType | MapType | ArrayType | str, column: str = "data") -> Column:
    """Parse the JSON text of `column` into a struct named `payload`, in the JVM.

    A field that the text does not have is null; if the text is not JSON, all fields are. Keep the column `id` to find
    the entry again. `schema` is a type or a DDL string, such as `"report_id STRING, claimed_views BIGINT"`.
    """
    return from_json(col(column), schema).alias("payload")
