"""The corpus of hostile inputs through Spark itself: out of a stream, and into both sinks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from redis import Redis

from conquiet.jobs import open_store
from conquiet.queue import QueueConfig, RedisStreamsQueue, connect
from conquiet.spark import payload
from tests.abuse.corpus import Hostile, corpus

STREAM, GROUP = "reports", "spark"
GOOD = b'{"good":true}'
LATEST = "18446744073709551610"  # an id chosen by its producer: later than any timestamp


def added(redis: Redis) -> dict[str, str | None]:
    """Add the corpus between good entries; returns each id with the `data` that its row must have."""
    entries: list[tuple[dict[bytes, bytes], str | None]] = []
    for one in corpus():
        entries.append(({b"data": one.raw}, utf8(one.raw)))
        entries.append(({one.raw: b"{}"}, None))
        entries.append(({b"data": b"{}", one.raw + b"x": one.raw}, None))
        entries.append(({b"data": GOOD}, GOOD.decode()))
    with redis.pipeline(transaction=False) as pipeline:
        for fields, _ in entries:
            pipeline.xadd(STREAM, fields)  # type: ignore[arg-type]
        pipeline.xadd(STREAM, {"data": GOOD}, id=f"{LATEST}-1")
        pipeline.xadd(STREAM, {"data": b"\xff"})
        pipeline.xadd(STREAM, {"data": GOOD})
        ids = [found.decode() for found in pipeline.execute()]
    assert ids[-1] == f"{LATEST}-3"  # the server continues from there
    return dict(zip(ids, [data for _, data in entries] + [GOOD.decode(), None, GOOD.decode()], strict=True))


def utf8(raw: bytes) -> str | None:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return None


def test_a_query_survives_every_entry_and_the_good_ones_arrive(
    spark: SparkSession, one_redis: str, tmp_path: Path
) -> None:
    rows: dict[str, Any] = {}

    def keep(frame: DataFrame, _number: int) -> None:
        chosen = frame.select("id", "data", "enqueued_at", payload("good BOOLEAN"))
        for row in chosen.collect():
            assert row.id not in rows
            rows[row.id] = row

    def run() -> None:
        options = {"url": one_redis, "stream": STREAM, "group": GROUP, "consumer": "query"}
        frame = spark.readStream.format("conquiet").options(**options).load()
        writer = frame.writeStream.foreachBatch(keep).option(
            "checkpointLocation", str(tmp_path / "checkpoint")
        )
        writer.trigger(availableNow=True).start().awaitTermination()

    with connect(one_redis) as redis:
        expected = added(redis)
        run()
        assert {id: row.data for id, row in rows.items()} == expected
        assert [id for id, row in rows.items() if row.enqueued_at is None] == [
            f"{LATEST}-{n}" for n in (1, 2, 3)
        ]
        goods = {id for id, data in expected.items() if data == GOOD.decode()}
        assert len(goods) == len(corpus()) + 2
        assert {id for id, row in rows.items() if row.payload and row.payload.good} == goods
        # The query survives: new entries arrive too, and nothing arrives again.
        redis.xadd(STREAM, {"data": GOOD})
        run()
        assert set(rows) == {*expected, f"{LATEST}-4"}
        assert redis.xpending(STREAM, GROUP)["pending"] == 0
        assert redis.exists("pwned") == 0


def frame_of(spark: SparkSession, rows: list[Hostile]) -> DataFrame:
    """The inputs' bytes as Spark strings, which are not checked."""
    data = [(f"{number:04}", bytearray(row.raw)) for number, row in enumerate(rows)]
    return spark.createDataFrame(data, "id STRING, raw BINARY").selectExpr(
        "id", "CAST(raw AS STRING) AS text"
    )


def test_every_input_becomes_data_of_a_stream_or_is_refused(spark: SparkSession, one_redis: str) -> None:
    def write(rows: list[Hostile]) -> None:
        frame = frame_of(spark, rows).selectExpr("text AS data").coalesce(1)
        frame.write.format("conquiet").mode("append").options(url=one_redis, stream=STREAM).save()

    taken = [one for one in corpus() if one.payload is not None]
    write(taken)
    with pytest.raises(PySparkException, match="not UTF-8 JSON.*Nothing is published"):
        write([*taken, Hostile("refused", b'{"a":"\xff"}')])
    with connect(one_redis) as redis:
        queue = RedisStreamsQueue(redis, QueueConfig(STREAM, GROUP, "reader"))
        assert [message.payload for message in queue.read(1_000, 10_000)] == [one.payload for one in taken]


def test_every_input_becomes_a_job_or_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    dsn = f"sqlite:///{tmp_path}/jobs.db"

    def write(frame: DataFrame) -> None:
        frame.coalesce(1).write.format("conquiet").mode("append").options(dsn=dsn, queue="q").save()

    taken = [one for one in corpus() if one.payload is not None]
    by_payload = frame_of(spark, taken).selectExpr("id", "text AS payload", "id AS correlation_id")
    names = [one for one in corpus() if one.is_name]
    by_name = frame_of(spark, names).selectExpr("text AS id", "'{}' AS payload", "text AS correlation_id")
    write(by_payload.union(by_name))
    refused = frame_of(spark, [Hostile("refused", b"\xff")])
    with pytest.raises(PySparkException, match="a value of id is not text.*Nothing is published"):
        write(by_payload.union(refused.selectExpr("text", "'{}'", "NULL")))
    with open_store(dsn) as store:
        jobs = {job.id: job for job in store.list(limit=10_000)}
    assert len(jobs) == len(taken) + len(names)
    for number, one in enumerate(taken):
        assert jobs[f"{number:04}"].payload == one.payload
    for one in names:
        assert (jobs[one.text].payload, jobs[one.text].correlation_id) == ({}, one.text)


def test_a_watermark_is_not_moved_by_an_id_that_is_no_time(
    spark: SparkSession, one_redis: str, tmp_path: Path
) -> None:
    """Otherwise one such entry would make all later ones too late, and they would be dropped."""
    rows: list[str] = []

    def run() -> Any:
        options = {"url": one_redis, "stream": STREAM, "group": GROUP, "consumer": "query"}
        frame = spark.readStream.format("conquiet").options(**options).load()
        once = frame.withWatermark("enqueued_at", "1 hour").dropDuplicatesWithinWatermark(["data"])
        writer = once.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer = writer.foreachBatch(lambda found, _: rows.extend(row.data for row in found.collect()))
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        return max(progress.eventTime["watermark"] for progress in query.recentProgress if progress.eventTime)

    with connect(one_redis) as redis:
        for entry_id, data in (("*", "a"), ("*", "a"), (f"{LATEST}-1", "b"), ("*", "c")):
            redis.xadd(STREAM, {"data": data}, id=entry_id)
        run()
        redis.xadd(STREAM, {"data": "d"})
        assert run() < "3000"
        assert sorted(rows) == ["a", "b", "c", "d"]
