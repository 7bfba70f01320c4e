"""The progress of a query is shown on the terminal and in the metrics."""

from __future__ import annotations

import io
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import REGISTRY
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from redis import Redis
from rich.console import Console

from conquiet.queue import connect
from conquiet.spark.progress import ProgressListener, View
from tests.spark.source.queries import Query, fill


@pytest.fixture
def redis(one_redis: str) -> Iterator[Redis]:
    with connect(one_redis) as client:
        yield client


@pytest.fixture
def screen(spark: SparkSession) -> Iterator[io.StringIO]:
    screen = io.StringIO()
    listener = ProgressListener(spark, View(Console(file=screen, width=300, highlight=False)))
    spark.streams.addListener(listener)
    yield screen
    listener.stop()


def until_said(screen: io.StringIO, text: str) -> list[str]:
    """Spark notifies its listeners with a delay."""
    deadline = time.monotonic() + 30
    while text not in screen.getvalue():
        assert time.monotonic() < deadline, screen.getvalue()
        time.sleep(0.01)
    return screen.getvalue().splitlines()


def metric(name: str, query: str) -> float | None:
    return REGISTRY.get_sample_value(f"conquiet_pipeline_{name}", {"query": query})


@pytest.mark.clause("P-11")
def test_every_micro_batch_is_told_and_counted(
    spark: SparkSession, redis: Redis, one_redis: str, tmp_path: Path, screen: io.StringIO
) -> None:
    fill(redis, range(150))
    query = Query(spark, one_redis, tmp_path, maxEntriesPerTrigger="100", name="reports in")
    query.run()
    lines = until_said(screen, "ended after")
    assert lines[0] == "reports in started"
    assert lines[1].startswith("reports in batch 0: 100 rows in ")
    assert lines[2].startswith("reports in batch 1: 50 rows in ")
    assert ", 150 in all, " in lines[2]
    assert lines[2].endswith(" behind")
    assert lines[-1] == "reports in ended after 150 rows"
    assert metric("batches_total", "reports in") == 2
    assert metric("rows_total", "reports in") == 150
    assert metric("batch_seconds_count", "reports in") == 2
    assert metric("batch_seconds_sum", "reports in") > 0
    assert metric("rows_per_second", "reports in") > 0
    assert metric("entries_lost", "reports in") == 0
    assert metric("lag_seconds", "reports in") > 0


@pytest.mark.clause("P-11")
def test_lost_entries_and_a_failed_query_are_told(
    spark: SparkSession, redis: Redis, one_redis: str, tmp_path: Path, screen: io.StringIO
) -> None:
    fill(redis, range(20))
    query = Query(spark, one_redis, tmp_path, maxEntriesPerTrigger="10", failOnDataLoss="false", name="lossy")

    def lose_then_fail(number: int) -> None:
        if number == 0:
            fill(redis, range(20, 40))
            redis.xtrim("reports", maxlen=22, approximate=False)
        if number == 3:  # a task's losses show in the offset of the next batch
            raise RuntimeError("the sink is broken")

    query.on_batch = lose_then_fail
    running = query.start(processingTime="0 seconds")
    with pytest.raises(StreamingQueryException):
        running.awaitTermination(60)
    lines = until_said(screen, "failed")
    assert any(line.endswith("8 entries lost") for line in lines)
    assert lines[-1].startswith("lossy failed after ")
    assert metric("entries_lost", "lossy") == 8


def test_nothing_that_goes_wrong_here_reaches_a_query(spark: SparkSession) -> None:
    listener = ProgressListener(spark, None)
    listener.onQueryProgress(object())
    listener.onQueryTerminated(object())
