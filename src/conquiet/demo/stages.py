"""The stages of the main job on Redis and Spark: enqueue the sample, reconcile it, write the page."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import TYPE_CHECKING

from rich.progress import Progress

from conquiet.demo.retries import QUEUE, SAMPLE_RULES
from conquiet.demo.sample import Sample
from conquiet.demo.sample_files import MetricsFile
from conquiet.jobs import JobStore
from conquiet.queue import RedisStreamsQueue

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from redis import Redis

__all__ = ["GROUP", "STREAM", "enqueue", "reconcile", "write_page"]

STREAM, GROUP = "reports", "reconciliation"
# Number and minimum size of micro-batches. Each has its own line on the terminal and its own day on the page.
_BATCHES, _BATCH = 5, 5_000


def enqueue(
    queue: RedisStreamsQueue, redis: Redis, sample: Sample, reports: int, out: Path, progress: Progress
) -> None:
    """Put the sample into the stream, and the platform metrics into a Parquet file."""
    with progress, MetricsFile(out / "metrics.parquet") as metrics:
        bar = progress.add_task("enqueued", total=reports)
        for chunk in sample:
            queue.enqueue_many([entry for entry in chunk.entries if isinstance(entry, dict)])
            with redis.pipeline(transaction=False) as pipe:  # `enqueue` refuses what is not a JSON object
                for entry in chunk.entries:
                    if isinstance(entry, str):
                        pipe.xadd(STREAM, {"data": entry})
                pipe.execute()
            metrics.write(chunk.metrics)
            progress.update(bar, completed=sample.truth.reports)


def reconcile(spark: SparkSession, url: str, jobs_dsn: str, out: Path, sample: Sample) -> int:
    """Judge everything in the stream, replaying a month in simulated time. Return the number of lost entries.

    Entries are acknowledged after their micro-batch is written.
    """
    from conquiet.reconcile.spark import RetryJobs, read_metrics, reconcile_stream

    entries = sample.truth.entries
    at_once = max(_BATCH, entries // _BATCHES + 1)
    ends = itertools.count(at_once, at_once)
    source = {"url": url, "stream": STREAM, "group": GROUP, "consumer": "make-run"}
    source["maxEntriesPerTrigger"] = str(at_once)
    query = reconcile_stream(
        spark.readStream.format("conquiet").options(**source).load(),
        lambda: read_metrics(spark, str(out / "metrics.parquet")),
        output=str(out),
        checkpoint=str(out / "checkpoint"),
        retry_jobs=RetryJobs(jobs_dsn, QUEUE),
        rules=SAMPLE_RULES,
        name="reconciliation",
        as_of=lambda: sample.judged_at(next(ends) / entries),
        trigger={"availableNow": True},
    )
    query.awaitTermination()
    assert query.lastProgress is not None
    return int(json.loads(query.lastProgress.sources[0].endOffset)["lost"])


def write_page(spark: SparkSession, store: JobStore, out: Path, lost: int) -> None:
    from conquiet.reconcile.report import collect_figures, job_attempts, read_outputs, write_report

    outputs = read_outputs(spark, str(out))
    attempts = job_attempts(spark, store, str(out / "attempts"))
    figures = collect_figures(
        outputs,
        attempts=attempts,
        queues=store.stats(),
        lost=lost,
        rules=SAMPLE_RULES,
        title="The sample of make run",
    )
    write_report(out / "report.html", figures)
