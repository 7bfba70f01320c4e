"""The Spark source against a plain consumer, both from a full stream to parsed and acknowledged rows; and the sinks."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import redis
from pyspark.sql import SparkSession

from bench import raw, spark_sinks
from bench.harness import Bench, timed
from conquiet.embedded import RedisServer
from conquiet.queue import QueueConfig, RedisStreamsQueue, connect
from conquiet.spark import payload, spark_session

BENCH = Bench("spark")
STREAM = "bench:spark"
SCHEMA = "report_id STRING, affiliate_id STRING, claimed_views BIGINT, claimed_clicks BIGINT"

redis_server = BENCH.needs(RedisServer)
_decode = msgspec.json.Decoder().decode


@contextmanager
def _session() -> Iterator[SparkSession]:
    session = spark_session("bench", "local[*]", {"spark.driver.memory": "2g"})
    yield session
    session.stop()


spark = BENCH.needs(_session)


@contextmanager
def stream(filled: int) -> Iterator[redis.Redis]:
    """Create a stream with this many entries and a group that has read none of them."""
    with connect(redis_server().url, socket_timeout=60) as client:
        client.flushall()
        raw.stream_create(client, STREAM)
        queue = RedisStreamsQueue(client, QueueConfig(STREAM, raw.GROUP, raw.CONSUMER))
        row = _decode(raw.PAYLOAD)
        for size in raw.batches(filled, 50_000):
            queue.enqueue_many([row] * size)
        yield client


def source_raw(count: int) -> float:
    """One process with redis-py and msgspec, 1,000 entries per read."""
    with stream(count) as client:
        return timed(lambda: raw.stream_read_ack(client, STREAM, count, batch=1_000, decode=_decode))


def source_ours(count: int) -> float:
    """Time from the start to the end of the query, which uses every field of the payload."""
    folder = tempfile.mkdtemp()
    frame = (
        spark()
        .readStream.format("conquiet")
        .options(url=redis_server().url, stream=STREAM, group=raw.GROUP, consumer="bench-spark")
        .load()
        .select("id", "enqueued_at", payload(SCHEMA))
        .select("id", "enqueued_at", "payload.*")
    )

    def drain() -> None:
        writer = frame.writeStream.format("noop").option("checkpointLocation", folder)
        writer.trigger(availableNow=True).start().awaitTermination()

    try:
        with stream(count) as client:
            seconds = timed(drain)
            left = client.xpending(STREAM, raw.GROUP)["pending"] + client.xinfo_groups(STREAM)[0]["lag"]
            assert left == 0, f"{left} entries were not read and acknowledged"
            return seconds
    finally:
        shutil.rmtree(folder)


BENCH.compare("source", unit="entries", count=1_000_000, ours=source_ours, raw=source_raw)
spark_sinks.add_to(BENCH, spark, redis_server)
