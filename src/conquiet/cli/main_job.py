"""`make run`: sample reports through a Redis stream and Spark into Parquet, and a count that must be right."""

from __future__ import annotations

import argparse
import platform
import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

from conquiet import __version__
from conquiet.cli.sample import Sample
from conquiet.embedded import RedisServer, find_java
from conquiet.errors import ConquietError
from conquiet.queue import BacklogStats, QueueConfig, RedisStreamsQueue, connect
from conquiet.reconcile import DEFAULT_RULES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_console = Console(highlight=False, soft_wrap=True)

_STREAM, _GROUP = "reports", "classification"
_AT_ONCE = 5_000
_SCHEMA = "report_id STRING, affiliate_id STRING, claimed_views BIGINT, observed_views BIGINT"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make run", description=__doc__)
    parser.add_argument("--reports", type=_count, default=20_000, metavar="N", help="how many (20,000)")
    parser.add_argument(
        "--out", type=Path, default=Path("out"), metavar="FOLDER", help="for the results (out)"
    )
    options = parser.parse_args(argv)
    _console.print(
        f"[bold]conquiet {__version__}[/] on Python {platform.python_version()}, {platform.machine()}"
    )
    try:
        return _run(options.reports, options.out)
    except ConquietError as error:
        _console.print(f"[red]failed:[/] {escape(str(error))}")
        return 1
    except KeyboardInterrupt:
        _console.print("stopped. The servers of this run are gone with it: the next one starts afresh")
        return 130


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return number


def _run(reports: int, out: Path) -> int:
    began = perf_counter()
    verdicts, checkpoint = out / "verdicts", out / "checkpoint"
    for old in (verdicts, checkpoint):  # the servers are new, so what another run left belongs to nothing
        shutil.rmtree(old, ignore_errors=True)
    out.mkdir(parents=True, exist_ok=True)
    _console.print(f"  java        {escape(find_java().describe())}")
    with _told("redis", RedisServer(appendonly=True)) as server, connect(server.url) as redis:
        queue = RedisStreamsQueue(redis, QueueConfig(_STREAM, _GROUP, "producer"))
        sample = Sample(reports)
        _enqueue(queue, sample, reports)
        with _spark() as spark:
            found = _classify(spark, server.url, verdicts, checkpoint)
        backlog = queue.backlog_stats()
    return _report(sample.truth, found, backlog, verdicts, perf_counter() - began)


@contextmanager
def _told(name: str, server: Any) -> Iterator[Any]:
    began = perf_counter()
    with server:
        _console.print(f"  {name:<11} {server.describe()}, ready after {perf_counter() - began:.1f} s")
        yield server


@contextmanager
def _spark() -> Iterator[SparkSession]:
    from conquiet.pipeline import show_progress, spark_session

    began = perf_counter()
    spark = spark_session("conquiet sample")
    _console.print(
        f"  spark       {spark.version}, {spark.sparkContext.master}, ready after {perf_counter() - began:.1f} s"
    )
    listener = show_progress(spark)
    try:
        yield spark
    finally:
        listener.stop()
        spark.stop()


def _enqueue(queue: RedisStreamsQueue, sample: Sample, reports: int) -> None:
    with Progress(console=_console) as progress:
        bar = progress.add_task("enqueued", total=reports)
        made = iter(sample)
        while batch := list(islice(made, _AT_ONCE)):
            queue.enqueue_many(batch)
            progress.advance(bar, len(batch))


def _classify(spark: SparkSession, url: str, verdicts: Path, checkpoint: Path) -> Counter[str]:
    """From the stream into Parquet; how many of each class are there afterwards."""
    from pyspark.sql import functions as sql

    from conquiet.pipeline import payload

    options = {"url": url, "stream": _STREAM, "group": _GROUP, "consumer": "make-run"}
    rows = spark.readStream.format("conquiet").options(**options).load()
    report = rows.select("id", payload(_SCHEMA)).selectExpr("id", "payload.*")
    excess = sql.col("claimed_views") / sql.col("observed_views") - 1
    verdict = (
        sql.when(excess >= DEFAULT_RULES.overclaimed_from, "overclaimed")
        .when(excess <= DEFAULT_RULES.matched_up_to, "matched")
        .otherwise("discrepancy")
    )
    query = (
        report.withColumn("verdict", verdict)
        .writeStream.queryName("classification")
        .format("parquet")
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start(str(verdicts))
    )
    query.awaitTermination()
    counts = spark.read.parquet(str(verdicts)).groupBy("verdict").count().collect()
    return Counter({row["verdict"]: row["count"] for row in counts})


def _report(
    truth: Mapping[str, int],
    found: Mapping[str, int],
    backlog: BacklogStats,
    verdicts: Path,
    seconds: float,
) -> int:
    table = Table("verdict", "generated", "found")
    for name in sorted({*truth, *found}):
        same = truth.get(name, 0) == found.get(name, 0)
        table.add_row(
            name, f"{truth.get(name, 0):,}", f"[{'green' if same else 'red'}]{found.get(name, 0):,}[/]"
        )
    _console.print(table)
    right = dict(truth) == dict(found) and backlog.pending == 0
    total = sum(truth.values())
    _console.print(
        f"[bold {'green' if right else 'red'}]{'right' if right else 'WRONG'}:[/] {total:,} reports enqueued, "
        f"{sum(found.values()):,} verdicts in {escape(str(verdicts))}, {backlog.pending} pending, in {seconds:.1f} s"
    )
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
