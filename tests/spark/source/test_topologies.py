"""The source and the sink of Spark behind Sentinels and in a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from conquiet.queue import connect
from tests.spark.source.queries import GROUP, STREAM, Query, fill, pending
from tests.topologies import ClusterOfServers, Replicated, eventually


@pytest.fixture
def replicated() -> Iterator[Replicated]:
    with Replicated() as service:
        yield service


@pytest.fixture
def cluster() -> Iterator[ClusterOfServers]:
    with ClusterOfServers() as servers:
        yield servers


def test_a_query_goes_on_from_its_checkpoint_on_the_new_master(
    spark: SparkSession, replicated: Replicated, tmp_path: Path
) -> None:
    query = Query(spark, replicated.url, tmp_path)
    (replica,) = replicated.replicas
    with connect(replicated.url) as redis:
        before = fill(redis, range(50))
        running = query.start(processingTime="100 milliseconds")
        eventually(
            lambda: len(query.ids) == 50 and pending(redis) == 0, "the first batch is acknowledged", 120
        )
        eventually(lambda: replica.has_all_of(replicated.master), "the replica has everything")
        replicated.master.kill()
        # Nothing is retried on the way to Redis, except what harms nobody: the query ends, and says so.
        with pytest.raises(StreamingQueryException, match="QueueConnectionError|QueueOutcomeUnknownError"):
            running.awaitTermination(60)
        replicated.promoted()
        after = fill(redis, range(50, 80))
        query.run()
        assert sorted(query.ids) == sorted([*before, *after])
        assert pending(redis) == 0


@pytest.mark.parametrize("stream", [STREAM, "a}b{}"])
def test_a_stream_of_a_cluster(
    spark: SparkSession, cluster: ClusterOfServers, tmp_path: Path, stream: str
) -> None:
    query = Query(spark, cluster.url, tmp_path, stream=stream)
    rows = spark.range(100).selectExpr("id AS n")
    rows.write.format("conquiet").options(url=cluster.url, stream=stream).mode("append").save()
    with connect(cluster.url) as redis:
        ids = [entry.decode() for entry, _ in redis.xrange(stream)]
        assert len(ids) == 100
        query.run()
        assert sorted(query.ids) == sorted(ids)
        assert redis.xpending(stream, GROUP)["pending"] == 0
    read = spark.read.format("conquiet").options(url=cluster.url, stream=stream).load()
    assert sorted(row.id for row in read.collect()) == sorted(ids)
