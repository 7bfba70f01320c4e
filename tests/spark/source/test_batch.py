"""The batch read of a stream: by id, by time, in ranges that neither overlap nor leave gaps."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import DataFrame, SparkSession
from redis import Redis

from conquiet.queue import connect


@pytest.fixture
def redis(one_redis: str) -> Iterator[Redis]:
    with connect(one_redis) as client:
        yield client


@pytest.fixture
def stream(redis: Redis) -> list[str]:
    """Entries at 0, 1, 2, … seconds past a full hour, in uneven numbers."""
    ids = [
        f"{1_800_000_000_000 + second * 1_000}-{n}" for second in range(10) for n in range(1 + second * 90)
    ]
    pipeline = redis.pipeline(transaction=False)
    for one in ids:
        pipeline.xadd("s", {"data": "{}"}, id=one)
    pipeline.execute()
    return ids


def read(spark: SparkSession, url: str, **options: str) -> DataFrame:
    return spark.read.format("conquiet").options(url=url, stream="s", **options).load()


def ids_of(frame: DataFrame) -> list[str]:
    return [row.id for row in frame.select("id").collect()]


@pytest.mark.clause("P-01")
def test_the_whole_stream_and_ranges_of_it(spark: SparkSession, one_redis: str, stream: list[str]) -> None:
    whole = read(spark, one_redis, partitions="3")
    assert whole.rdd.getNumPartitions() == 3
    assert ids_of(whole) == stream
    by_id = read(spark, one_redis, startingId=stream[5], endingId=stream[700])
    assert ids_of(by_id) == stream[5:701]
    by_time = read(
        spark, one_redis, startingTime="2027-01-15T08:00:03Z", endingTime="2027-01-15T09:00:05+01:00"
    )
    assert ids_of(by_time) == [
        one for one in stream if 1_800_000_003_000 <= int(one[:13]) < 1_800_000_005_000
    ]


def test_nothing_is_delivered_by_it_and_what_comes_later_is_not_in_it(
    spark: SparkSession, one_redis: str, redis: Redis, stream: list[str]
) -> None:
    redis.xgroup_create("s", "g", id="0-0")
    frame = read(spark, one_redis)
    assert frame.count() == len(stream)
    info = redis.xinfo_groups("s")[0]
    assert (info["pending"], info["last-delivered-id"]) == (0, b"0-0")


def test_an_empty_range_has_no_rows(spark: SparkSession, one_redis: str, stream: list[str]) -> None:
    assert ids_of(read(spark, one_redis, startingId="1900000000000-0")) == []
    assert ids_of(spark.read.format("conquiet").options(url=one_redis, stream="nothing").load()) == []
