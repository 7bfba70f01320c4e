"""Everything public that takes a DSN, each used as far as possible before a server answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StringType, StructField, StructType

from conquiet import Conquiet
from conquiet.cli.verbs import doctor
from conquiet.jobs import migrate, migration_plan, open_async_store, open_store
from conquiet.queue import (
    AsyncRedisStreamsQueue,
    QueueConfig,
    QueueConsumer,
    RedisStreamsQueue,
    connect,
    connect_async,
)
from conquiet.reconcile import PlatformFetcher, ReconciliationService, open_database
from conquiet.reconcile.spark.outputs.databases import new_run, output_database
from conquiet.spark.sink.writers import ConquietBatchWriter
from conquiet.spark.source.batch import ConquietBatchReader
from conquiet.spark.source.blocks import Block
from conquiet.spark.source.options import SOURCE_SCHEMA
from conquiet.spark.source.reader import BlockReader
from conquiet.spark.source.stream import Blocks, ConquietStreamReader
from conquiet.verify import verify

__all__ = ["ON_JOBS", "ON_OUTPUTS", "ON_REDIS", "ON_REPORTS", "Opener", "doctor_of_jobs"]

Opener = Callable[[str], object]

CONFIG = QueueConfig("orders", "billing", "alice", block_ms=50)
JOBS = StructType([StructField("id", StringType()), StructField("payload", StringType())])
TEXTS = StructType([StructField("data", StringType())])


def async_store(dsn: str) -> object:
    return asyncio.run(open_async_store(dsn))


def app(dsn: str) -> object:
    application = Conquiet(dsn)

    @application.task
    def greet(name: str) -> None: ...

    return greet.enqueue("ann")


def app_async(dsn: str) -> object:
    application = Conquiet(dsn)

    @application.task
    def greet(name: str) -> None: ...

    async def call() -> object:
        return await greet.enqueue_async("ann")

    return asyncio.run(call())


def job_sink(dsn: str) -> object:
    return ConquietBatchWriter({"dsn": dsn, "queue": "q"}, JOBS, overwrite=False)


def queue(url: str) -> object:
    with connect(url) as client:
        return RedisStreamsQueue(client, CONFIG)


def consumer(url: str) -> object:
    with connect(url) as client:
        return QueueConsumer(client, CONFIG)


def queue_async(url: str) -> object:
    async def create() -> object:
        client = connect_async(url)
        try:
            return await AsyncRedisStreamsQueue.create(client, CONFIG)
        finally:
            await client.aclose()

    return asyncio.run(create())


def stream_sink(url: str) -> object:
    sink = ConquietBatchWriter({"url": url, "stream": "s"}, TEXTS, overwrite=False)
    return sink.sink.stage(iter([pa.RecordBatch.from_pydict({"data": ["{}"]})]), sink._batch, "ab")


def stream_source(url: str) -> object:
    source = _source(url)
    return source.latestOffset(source.initialOffset(), ReadAllAvailable())


def stream_source_on_an_executor(url: str) -> object:
    return list(_source(url).read(Blocks([Block("1-1", "1-2", 2)], "q")))


def batch_source(url: str) -> object:
    return ConquietBatchReader({"url": url, "stream": "s"}, SOURCE_SCHEMA).partitions()


def block_reader(url: str) -> object:
    with BlockReader(url, "s", SOURCE_SCHEMA) as reader:
        return reader.read("-", "+")


def _source(url: str) -> ConquietStreamReader:
    options = {"url": url, "stream": "s", "group": "g", "consumer": "c"}
    return ConquietStreamReader(options, SOURCE_SCHEMA)


def service(dsn: str) -> object:
    return ReconciliationService(dsn, PlatformFetcher({}))


def outputs(dsn: str) -> object:
    return output_database(dsn).prepare(new_run("a"))


def doctor_of_jobs(dsn: str) -> Any:
    return doctor._store("the job store", dsn, dsn)


def doctor_of_redis(url: str) -> Any:
    return doctor._redis("Redis", url, url)


ON_JOBS: list[Opener] = [open_store, async_store, migrate, migration_plan, app, app_async, job_sink]
ON_JOBS += [doctor_of_jobs, verify]
ON_REDIS: list[Opener] = [
    queue,
    consumer,
    queue_async,
    stream_sink,
    stream_source,
    batch_source,
    block_reader,
]
ON_REDIS += [stream_source_on_an_executor, doctor_of_redis, verify]
ON_REPORTS: list[Opener] = [open_database, service]
ON_OUTPUTS: list[Opener] = [outputs]
