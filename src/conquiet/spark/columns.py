"""The payload of an entry as columns."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql.functions import col, from_json
from pyspark.sql.types import ArrayType, MapType, StructType

__all__ = ["payload"]


def payload(schema: StructType | MapType | ArrayType | str, column: str = "data") -> Column:
    """The JSON text of `column` as a struct named `payload`, parsed in the JVM.

    A field that the text does not have is null; if the text is not JSON, all of them are. Keep `id` beside it to find the
    entry.
    `schema` is a type or a DDL string, such as `"report_id STRING, claimed_views BIGINT"`.
    """
    return from_json(col(column), schema).alias("payload")
