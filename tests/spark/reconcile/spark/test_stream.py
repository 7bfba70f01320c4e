"""Reports from a real queue to tables and retry jobs, exactly once, whatever is replayed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from conquiet.jobs import JobStore, open_store
from conquiet.queue import QueueConfig, RedisStreamsQueue, connect
from conquiet.reconcile import ReconciliationJob
from conquiet.reconcile.spark import RetryJobs, reconcile_stream
from conquiet.reconcile.spark.inputs import read_metrics
from tests.spark.reconcile.spark.cases import AS_OF, METRICS, Row

pytestmark = pytest.mark.clause("P-08")

TABLES = ("verdicts", "trust", "alerts", "retries", "quarantine")


class Pipeline:
    """A query from a queue to a folder and a job store that can be run again."""

    def __init__(self, spark: SparkSession, url: str, folder: Path) -> None:
        self.spark, self.url, self.folder = spark, url, folder
        self.dsn = f"sqlite:///{folder}/jobs.db"
        self.metrics = str(folder / "metrics.parquet")
        self.queue = RedisStreamsQueue(connect(url), QueueConfig("reports", "spark", "producer"))
        self.observe(range(0, 60, 2))

    def observe(self, posts: range) -> None:
        moment = AS_OF - timedelta(hours=1)
        rows = [
            {
                "platform": "photos",
                "post_id": f"p{n}",
                "views": 1000,
                "clicks": 40,
                "conversions": 3,
                "observed_at": moment,
            }
            for n in posts
        ]
        pq.write_table(pa.Table.from_pylist(rows, METRICS), self.metrics)

    def run(self, name: str | None = None) -> None:
        source = {
            "url": self.url,
            "stream": "reports",
            "group": "spark",
            "consumer": "query",
            "maxEntriesPerTrigger": "25",
        }
        query = reconcile_stream(
            self.spark.readStream.format("conquiet").options(**source).load(),
            lambda: read_metrics(self.spark, self.metrics),
            str(self.folder / "out"),
            str(self.folder / "checkpoint"),
            retry_jobs=RetryJobs(self.dsn),
            as_of=lambda: AS_OF,
            trigger={"availableNow": True},
            name=name,
        )
        query.awaitTermination()

    def table(self, name: str) -> list[Row]:
        frame: DataFrame = self.spark.read.parquet(str(self.folder / "out" / name))
        rows: list[Row] = frame.drop("batch").toArrow().to_pylist()
        return sorted(rows, key=repr)

    def tables(self) -> dict[str, list[Row]]:
        return {name: self.table(name) for name in TABLES}

    def forget_the_last_commit(self) -> None:
        """As if the driver was killed just before the commit: Spark runs the batch again."""
        commits = self.folder / "checkpoint" / "commits"
        last = max(int(file.name) for file in commits.iterdir() if file.name.isdigit())
        for file in (commits / str(last), commits / f".{last}.crc"):
            file.unlink(missing_ok=True)


@pytest.fixture
def pipeline(spark: SparkSession, one_redis: str, tmp_path: Path) -> Iterator[Pipeline]:
    """Without the empty batch that Spark adds to clean up its state: the last batch is one with reports."""
    spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "false")
    yield Pipeline(spark, one_redis, tmp_path)
    spark.conf.unset("spark.sql.streaming.noDataMicroBatches.enabled")


def report(number: int, **changes: Any) -> Row:
    return {
        "report_id": number,
        "affiliate_id": f"affiliate-{number % 3}",
        "platform": "photos",
        "post_id": f"p{number}",
        "claimed_views": 1500 if number % 10 == 0 else 1000,
        "claimed_clicks": 40,
        "claimed_conversions": 3,
        "submitted_at": "2026-01-31T10:00:00Z",
    } | changes


def jobs(store: JobStore) -> dict[str, Any]:
    return {job.id: job.payload for job in store.list(queue="reconciliation", limit=1_000)}


@pytest.mark.parametrize("milliseconds", [2**63, 253_000_000_000_000], ids=["no time", "in the year 9987"])
def test_an_id_far_in_the_future_does_not_let_a_report_count_twice(
    pipeline: Pipeline, milliseconds: int
) -> None:
    """All later entries of the stream have such ids, too: Redis continues from there."""
    pipeline.queue.enqueue(report(10))
    pipeline.run()
    with connect(pipeline.url) as redis:
        redis.xadd("reports", {"data": json.dumps(report(20))}, id=f"{milliseconds}-1")
    pipeline.run()
    pipeline.queue.enqueue_many([report(10), report(20), report(30)])
    pipeline.run()
    pipeline.queue.enqueue_many([report(10), report(20), report(30), report(40)])
    pipeline.run()
    for table in ("verdicts", "trust"):
        assert sorted(row["report_id"] for row in pipeline.table(table)) == [10, 20, 30, 40], table


def test_from_the_queue_to_tables_and_jobs(pipeline: Pipeline) -> None:
    pipeline.queue.enqueue_many([report(number) for number in range(60)])
    pipeline.queue.enqueue_many([{"hello": 1}, report(7), report(61, claimed_views=-1), report(8)])
    pipeline.queue.enqueue({"no": "report"})
    before = datetime.now(UTC)
    pipeline.run()
    verdicts = pipeline.table("verdicts")
    assert sorted(row["report_id"] for row in verdicts) == list(range(60))
    assert {row["status"] for row in verdicts if row["report_id"] % 10 == 0} == {"AFFILIATE_OVERCLAIMED"}
    assert {row["status"] for row in verdicts if row["report_id"] % 2} == {"MISSING_PLATFORM_DATA"}
    assert {row["day"].isoformat() for row in verdicts} == {"2026-01-31"}
    trust = pipeline.table("trust")
    assert sum(row["delta_hundredths"] for row in trust) == 24 * 1 + 6 * -10
    assert sorted(row["report_id"] for row in pipeline.table("alerts")) == [0, 10, 20, 30, 40, 50]
    assert sorted(row["reason"].split()[0] for row in pipeline.table("quarantine")) == [
        "claimed_views",
        "report_id",
        "report_id",
    ]
    assert all("-" in row["position"] for row in pipeline.table("quarantine"))  # an entry's id
    with open_store(pipeline.dsn) as store:
        waiting = jobs(store)
        assert set(waiting) == {f"report-{number}-attempt-2" for number in range(1, 60, 2)}
        one = store.get("report-1-attempt-2")
        assert one
        assert one.retry_at is None or one.retry_at >= before
    job = ReconciliationJob.from_payload(waiting["report-1-attempt-2"])
    assert (job.affiliate_report_id, job.attempt, job.scheduled_at) == (1, 2, AS_OF + timedelta(minutes=30))
    assert pipeline.queue.backlog_stats().pending == 0


def test_a_replayed_batch_changes_nothing(pipeline: Pipeline) -> None:
    """Not even if the platform returns more meanwhile: half of the batch's effects may be there already."""
    pipeline.queue.enqueue_many([report(number) for number in range(40)])
    pipeline.run()
    before = pipeline.tables()
    with open_store(pipeline.dsn) as store:
        waiting = jobs(store)
        pipeline.observe(range(60))
        for _ in range(2):
            pipeline.forget_the_last_commit()
            pipeline.run()
        assert pipeline.tables() == before
        assert jobs(store) == waiting
    pipeline.queue.enqueue_many([report(number) for number in range(38, 44)])
    pipeline.run()
    verdicts = pipeline.table("verdicts")
    assert sorted(row["report_id"] for row in verdicts) == list(
        range(44)
    )  # 38 and 39 came again, and were known
    assert len(pipeline.table("trust")) == len(before["trust"]) + 4


def test_a_batch_that_was_not_judged_in_full_is_judged_again(pipeline: Pipeline) -> None:
    pipeline.queue.enqueue_many([report(number) for number in range(20)])
    pipeline.run()
    before = pipeline.tables()
    aside = sorted((pipeline.folder / "out" / "_aside").iterdir())
    assert len(aside) == 1  # older ones are removed
    (aside[0] / "judged" / "_SUCCESS").unlink()
    shutil.rmtree(pipeline.folder / "out" / "trust")
    pipeline.forget_the_last_commit()
    pipeline.run()
    assert pipeline.tables() == before


def test_an_alert_is_raised_once_in_all_micro_batches(pipeline: Pipeline) -> None:
    """For any attempt, at any time; it is raised again when it follows another status."""
    pipeline.queue.enqueue_many([report(number) for number in range(0, 60, 2)])  # 2 micro-batches
    pipeline.run()
    raised = pipeline.table("alerts")
    assert [row["report_id"] for row in raised] == [0, 10, 20, 30, 40, 50]
    pipeline.queue.enqueue_many([report(number, attempt=2) for number in range(0, 60, 2)])
    pipeline.queue.enqueue(report(2, attempt=2, claimed_views=1500))  # the same attempt, with other numbers
    pipeline.queue.enqueue(report(4, attempt=3, claimed_views=1500))
    pipeline.queue.enqueue(report(10, attempt=3, claimed_views=500))
    pipeline.run()
    pipeline.forget_the_last_commit()
    pipeline.run()
    later = [row for row in pipeline.table("alerts") if row not in raised]
    assert [(row["report_id"], row["status"], row["attempt"]) for row in later] == [
        (10, "DISCREPANCY_HIGH", 3),
        (4, "AFFILIATE_OVERCLAIMED", 3),
    ]
    assert len(pipeline.table("alerts")) == len(raised) + 2
    assert len(pipeline.table("trust")) == 30 + 30 + 2


def test_a_bad_report_does_not_stand_in_the_way_of_the_good_one(pipeline: Pipeline) -> None:
    pipeline.queue.enqueue_many([report(2, claimed_views=-1), report(2, submitted_at="2099-01-01T00:00:00Z")])
    pipeline.queue.enqueue_many([report(2), report(2), report(2, claimed_views=-1)])
    pipeline.run()
    assert [row["report_id"] for row in pipeline.table("verdicts")] == [2]
    assert len(pipeline.table("quarantine")) == 3


def test_another_checkpoint_does_not_replace_the_tables_of_the_first(pipeline: Pipeline) -> None:
    pipeline.queue.enqueue_many([report(number) for number in range(5)])
    pipeline.run()
    shutil.rmtree(pipeline.folder / "checkpoint")
    pipeline.queue.enqueue_many([report(number) for number in range(5, 9)])
    pipeline.run()
    assert {row["report_id"] for row in pipeline.table("verdicts")} == set(range(9))
    with open_store(pipeline.dsn) as store:
        assert set(jobs(store)) == {f"report-{number}-attempt-2" for number in (1, 3, 5, 7)}
