"""Streaming queries over a Redis stream, with a sink that keeps its rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from redis import Redis

from conquiet.queue import QueueConfig, RedisStreamsQueue

STREAM, GROUP, CONSUMER = "reports", "spark", "query-1"


def fill(redis: Redis, numbers: range) -> list[str]:
    queue = RedisStreamsQueue(redis, QueueConfig(STREAM, GROUP, "producer"))
    return queue.enqueue_many([{"n": number} for number in numbers])


def pending(redis: Redis) -> int:
    return int(redis.xpending(STREAM, GROUP)["pending"])


def sink_ids(folder: Path) -> list[str]:
    """All ids in the Parquet files that a driver has written, batch by batch."""
    files = sorted(folder.glob("out/batch=*/*.parquet"))
    return [str(one) for file in files for one in pq.ParquetFile(file).read(["id"]).column("id").to_pylist()]


class Query:
    """A query that can be run again and again from its checkpoint, and the rows of each of its batches."""

    def __init__(self, spark: SparkSession, url: str, folder: Path, name: str = "", **options: Any) -> None:
        self._name = name
        self._spark = spark
        self._folder = folder
        self.options = {"url": url, "stream": STREAM, "group": GROUP, "consumer": CONSUMER} | options
        self.batches: dict[int, list[str]] = {}
        self.on_batch: Callable[[int], None] = lambda number: None

    def frame(self) -> DataFrame:
        return self._spark.readStream.format("conquiet").options(**self.options).load()

    def start(self, **trigger: Any) -> StreamingQuery:
        writer = self.frame().writeStream.foreachBatch(self._write)
        writer = writer.option("checkpointLocation", str(self._folder / "checkpoint"))
        if self._name:
            writer = writer.queryName(self._name)
        return writer.trigger(**(trigger or {"availableNow": True})).start()

    def run(self) -> StreamingQuery:
        """Process everything that is there now."""
        query = self.start()
        query.awaitTermination()
        return query

    @property
    def ids(self) -> list[str]:
        return [one for batch in sorted(self.batches) for one in self.batches[batch]]

    def _write(self, rows: DataFrame, number: int) -> None:
        self.batches[number] = [row.id for row in rows.select("id").collect()]
        self.on_batch(number)
