"""Sinks without Spark: the work of tasks and of the commit, called by hand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa
import redis
from pyspark.sql.types import DoubleType, IntegerType, StringType, StructField, StructType

from conquiet.spark.sink.jobs import JobSink
from conquiet.spark.sink.options import JobOptions, StreamOptions, parsed
from conquiet.spark.sink.streams import StreamSink
from conquiet.spark.sink.writers import Batch

STREAM = "reports"
QUEUE = "reports"
DATA = StructType([StructField("data", StringType())])
JOBS = StructType(
    [
        StructField("id", StringType()),
        StructField("payload", StringType()),
        StructField("priority", IntegerType()),
        StructField("delay_seconds", DoubleType()),
        StructField("correlation_id", StringType()),
    ]
)


def stream_options(url: str, **more: str) -> StreamOptions:
    options = parsed({"url": url, "stream": STREAM, **more}, streaming=True)
    assert isinstance(options, StreamOptions)
    return options


def stream_sink(url: str, **more: str) -> StreamSink:
    return StreamSink(stream_options(url, **more), DATA)


def job_options(dsn: str, **more: str) -> JobOptions:
    options = parsed({"dsn": dsn, "queue": QUEUE, **more}, streaming=True)
    assert isinstance(options, JobOptions)
    return options


def job_sink(dsn: str, **more: str) -> JobSink:
    return JobSink(job_options(dsn, **more), JOBS)


def texts(count: int, begin: int = 0) -> list[str]:
    return [f'{{"n":{number}}}' for number in range(begin, begin + count)]


def arrow(column: Sequence[str | None]) -> pa.RecordBatch:
    return pa.record_batch([pa.array(column, pa.string())], names=["data"])


def job_rows(
    ids: Sequence[str | None], payloads: Sequence[str | None] | None = None, **columns: Iterable[object]
) -> pa.RecordBatch:
    data = {"id": pa.array(ids, pa.string()), "payload": pa.array(payloads or ["{}"] * len(ids), pa.string())}
    data |= {name: pa.array(list(values)) for name, values in columns.items()}
    return pa.record_batch(list(data.values()), names=list(data))


def entries(client: redis.Redis) -> list[str]:
    """The entries of the stream, in order; each has exactly one field, `data`."""
    found = []
    for _, fields in client.xrange(STREAM):
        assert list(fields) == [b"data"]
        found.append(fields[b"data"].decode())
    return found


def batch(number: int, sink: str = "query") -> Batch:
    return Batch(sink, number)
