"""The streaming source, in a real query on a real Redis."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from redis import Redis

from conquiet.queue import (
    NoTransactions,
    QueueConfig,
    QueueConsumer,
    QueueMessage,
    RedisStreamsQueue,
    connect,
)
from conquiet.spark import payload
from tests.spark.source.queries import GROUP, STREAM, Query, fill, pending


@pytest.fixture
def redis(one_redis: str) -> Iterator[Redis]:
    with connect(one_redis) as client:
        yield client


@pytest.fixture
def query(spark: SparkSession, one_redis: str, tmp_path: Path) -> Query:
    return Query(spark, one_redis, tmp_path)


@pytest.mark.clause("P-01")
def test_rows_carry_id_json_and_time_and_nothing_has_to_be_registered(
    spark: SparkSession, redis: Redis, query: Query, tmp_path: Path
) -> None:
    before = datetime.now(UTC).replace(microsecond=0)
    ids = fill(redis, range(3))
    redis.xadd(STREAM, {"other": "x"})  # malformed: a row without data, not a failed query
    redis.xadd(STREAM, {"data": "no JSON"})
    frame = query.frame().select("id", "data", "enqueued_at", payload("n INT"))
    out = str(tmp_path / "rows")
    frame.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "c")).trigger(
        availableNow=True
    ).start(out).awaitTermination()
    rows = spark.read.parquet(out).orderBy("enqueued_at", "id").collect()
    assert [row.id for row in rows[:3]] == ids
    assert [json.loads(row.data) for row in rows[:3]] == [{"n": 0}, {"n": 1}, {"n": 2}]
    assert [row.payload.n for row in rows[:3]] == [0, 1, 2]
    assert all(before <= row.enqueued_at.astimezone(UTC) <= datetime.now(UTC) for row in rows)
    assert [(row.data, row.payload and row.payload.n) for row in rows[3:]] == [
        (None, None),
        ("no JSON", None),
    ]
    assert pending(redis) == 0


@pytest.mark.clause("P-02")
def test_entries_are_pending_until_the_sink_has_committed(redis: Redis, query: Query) -> None:
    ids = fill(redis, range(250))
    query.options["maxEntriesPerTrigger"] = "100"
    seen: list[tuple[int, bool]] = []

    def on_batch(number: int) -> None:
        held = {row["message_id"].decode() for row in redis.xpending_range(STREAM, GROUP, "-", "+", 1_000)}
        seen.append((len(query.batches[number]), set(query.batches[number]) <= held))

    query.on_batch = on_batch
    query.run()
    assert seen == [(100, True), (100, True), (50, True)]
    assert query.ids == ids
    assert pending(redis) == 0  # the last batch too, although Spark never reports its end
    left = {str(key, "utf-8").rpartition(":")[2] for key in redis.scan_iter("*ledger*")}
    assert left <= {"query", "lease"}  # no blocks, no losses
    assert all(redis.ttl(key) > 0 for key in redis.scan_iter("*ledger*"))


@pytest.mark.clause("P-02", "P-03")
def test_a_batch_whose_sink_failed_comes_again_with_the_same_rows(redis: Redis, query: Query) -> None:
    ids = fill(redis, range(30))
    query.options["maxEntriesPerTrigger"] = "20"

    def fail(number: int) -> None:
        raise RuntimeError("the sink is broken")

    query.on_batch = fail
    with pytest.raises(StreamingQueryException, match="the sink is broken"):
        query.run()
    first = dict(query.batches)
    assert list(first) == [0]
    assert pending(redis) >= 20
    fill(redis, range(30, 40))
    query.batches, query.on_batch = {}, lambda number: None
    query.run()
    assert query.batches[0] == first[0]
    assert query.ids[:30] == ids
    assert len(query.ids) == len(set(query.ids)) == 40
    assert pending(redis) == 0


@pytest.mark.clause("P-04")
def test_a_recovery_worker_does_not_take_the_entries_of_a_long_batch(redis: Redis, query: Query) -> None:
    ids = fill(redis, range(20))
    query.options["heartbeat"] = "0.2"
    recovery = RedisStreamsQueue(redis, QueueConfig(STREAM, GROUP, "recovery"))
    taken: list[str] = []

    def work_long(number: int) -> None:
        deadline = time.monotonic() + 3.0
        while time.monotonic() < deadline:
            taken.extend(message.id for message in recovery.claim_stale(2_000, 100))
            time.sleep(0.05)

    query.on_batch = work_long
    query.run()
    assert taken == []
    assert query.ids == ids
    assert pending(redis) == 0


def test_available_now_ends_with_what_was_there_and_claims_no_more(redis: Redis, query: Query) -> None:
    ids = fill(redis, range(25))
    query.options["maxEntriesPerTrigger"] = "10"
    query.on_batch = lambda number: (fill(redis, range(100, 115)), None)[1]
    query.run()
    assert query.ids == ids
    assert pending(redis) == 0
    assert redis.xinfo_groups(STREAM)[0]["last-delivered-id"].decode() == ids[-1]
    assert redis.xlen(STREAM) == 25 + 15 * len(query.batches)


@pytest.mark.clause("P-04")
def test_plain_consumers_and_spark_share_a_group(redis: Redis, query: Query, one_redis: str) -> None:
    theirs: list[str] = []
    with connect(one_redis) as client:
        consumer = QueueConsumer(client, QueueConfig(STREAM, GROUP, "plain", block_ms=50))

        def handler(message: QueueMessage, tx: object) -> None:
            theirs.append(message.id)

        beside = threading.Thread(
            target=consumer.run, kwargs={"handler": handler, "db_factory": NoTransactions()}
        )
        query.options["maxEntriesPerTrigger"] = "40"
        running = query.start(processingTime="0 seconds")
        beside.start()
        ids: list[str] = []
        try:
            while len(theirs) < 100 or len(query.ids) < 100:  # both must get a share
                ids += fill(redis, range(100))
                running.processAllAvailable()
            while len(theirs) + len(query.ids) < len(ids):
                running.processAllAvailable()
        finally:
            consumer.stop()
            beside.join()
            running.stop()
    assert sorted([*theirs, *query.ids]) == sorted(ids)


@pytest.mark.clause("P-03")
def test_a_query_restarted_under_another_name_goes_on_with_its_own_entries(
    redis: Redis, query: Query
) -> None:
    """Five batches; the sink fails in the third, while the fourth is claimed ahead."""
    ids = fill(redis, range(5_000))
    query.options |= {"maxEntriesPerTrigger": "1000", "partitions": "4"}

    def fail(number: int) -> None:
        if number == 2:
            raise RuntimeError("the sink is broken")

    query.on_batch = fail
    with pytest.raises(StreamingQueryException, match="the sink is broken"):
        query.run()
    third = query.batches.pop(2)
    query.options |= {"consumer": "renamed", "partitions": "1"}
    query.on_batch = lambda number: None
    query.run()
    assert query.batches[2] == third
    assert query.ids == ids
    assert pending(redis) == 0


@pytest.mark.clause("P-01")
def test_two_queries_as_one_consumer_do_not_run_side_by_side(
    spark: SparkSession, redis: Redis, query: Query, one_redis: str, tmp_path: Path
) -> None:
    fill(redis, range(10))
    first = query.start(processingTime="0 seconds")
    first.processAllAvailable()
    second = Query(spark, one_redis, tmp_path / "second")
    with pytest.raises(StreamingQueryException, match="give each query its own `consumer`"):
        second.run()
    ids = fill(redis, range(10, 20))
    first.processAllAvailable()  # it is not disturbed
    assert query.ids[10:] == ids
    first.stop()
    ids = fill(redis, range(20, 30))
    second.run()
    assert second.ids == ids


def test_trimmed_entries_fail_the_query_or_are_counted(redis: Redis, query: Query) -> None:
    ids = fill(redis, range(20))
    query.options |= {"maxEntriesPerTrigger": "10", "partitions": "1"}

    def trim(number: int) -> None:
        """When the second batch is already claimed, and one entry is not delivered yet."""
        fill(redis, range(20, 31))
        redis.xtrim(STREAM, minid=ids[-1], approximate=False)

    query.on_batch = lambda number: trim(number) if number == 0 else None
    with pytest.raises(StreamingQueryException, match="entries are gone|of the 10 entries from .* are gone"):
        query.run()
    with pytest.raises(StreamingQueryException, match="failOnDataLoss=false"):
        query.run()  # every time, not only once
    query.options["failOnDataLoss"] = "false"
    last = query.run()
    assert query.ids == [
        *ids[:10],
        *ids[19:],
        *(one.decode() for one, _ in redis.xrange(STREAM) if one.decode() not in ids),
    ]
    offsets = [json.loads(progress.sources[0].endOffset) for progress in last.recentProgress]
    assert offsets[-1]["lost"] == 9
    assert pending(redis) == 0


def test_wrong_options_are_told_by_name(spark: SparkSession, query: Query) -> None:
    del query.options["consumer"]
    with pytest.raises(Exception, match="needs the option consumer"):
        query.run()
