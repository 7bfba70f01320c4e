"""Spark finds this package by its name: with conquiet installed, `format("conquiet")` works without registration."""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

__all__ = ["DefaultSource"]


class DefaultSource(DataSource):
    """Reads and writes Redis streams, and writes jobs. Imports are deferred, because Spark loads this module often."""

    @classmethod
    def name(cls) -> str:
        return "conquiet"

    def schema(self) -> StructType:
        from conquiet.spark.source.options import SOURCE_SCHEMA

        return SOURCE_SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        from conquiet.spark.source.batch import ConquietBatchReader

        return ConquietBatchReader(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from conquiet.spark.source.stream import ConquietStreamReader

        return ConquietStreamReader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from conquiet.spark.sink.writers import ConquietBatchWriter

        return ConquietBatchWriter(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from conquiet.spark.sink.writers import ConquietStreamWriter

        return ConquietStreamWriter(self.options, schema, overwrite)
