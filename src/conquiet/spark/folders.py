"""Folders of Spark's files, local or in a bucket, through Hadoop's file systems."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

__all__ = ["exists", "is_complete", "names_in", "remove"]


def is_complete(spark: SparkSession, folder: str) -> bool:
    """Return whether a write to the folder has completed."""
    return exists(spark, f"{folder}/_SUCCESS")


def exists(spark: SparkSession, path: str) -> bool:
    files, where = _files(spark, path)
    return bool(files.exists(where))


def names_in(spark: SparkSession, folder: str) -> list[str]:
    """Return the sorted names of the files in the folder, empty if there is no such folder."""
    files, where = _files(spark, folder)
    if not files.exists(where):
        return []
    return sorted(status.getPath().getName() for status in files.listStatus(where))


def remove(spark: SparkSession, path: str) -> None:
    files, where = _files(spark, path)
    files.delete(where, True)


def _files(spark: SparkSession, path: str) -> tuple[Any, Any]:
    context: Any = spark.sparkContext
    where = context._jvm.org.apache.hadoop.fs.Path(path)
    return where.getFileSystem(context._jsc.hadoopConfiguration()), where
