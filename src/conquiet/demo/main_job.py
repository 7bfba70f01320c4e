"""`make run`: the whole pipeline on a seeded sample, and every figure checked against what the generator knows.

reports → Redis stream → Spark: verdicts, trust, alerts, quarantine → retries as leased jobs on PostgreSQL
        → a worker on the Consumer Engine, platforms with faults, circuit breakers → tables, report.html, the check
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import platform
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from conquiet import __version__
from conquiet.demo.findings import Line, add_retries, compared, counted
from conquiet.demo.retries import QUEUE, SAMPLE_RULES, work_off
from conquiet.demo.sample import Sample
from conquiet.demo.sample_files import MetricsFile
from conquiet.embedded import PostgresServer, RedisServer, find_java
from conquiet.errors import ConquietError
from conquiet.jobs import JobStore, QueueStats, open_store
from conquiet.queue import QueueConfig, RedisStreamsQueue, connect
from conquiet.reconcile import open_database

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from redis import Redis
    from sqlalchemy.orm import Session, sessionmaker

__all__ = ["REPORTS", "main", "run_sample"]

REPORTS = 50_000
_STREAM, _GROUP = "reports", "reconciliation"
# How many micro-batches, unless they were small: each has its line on the terminal, and its day on the page.
_BATCHES, _BATCH = 5, 5_000
_MADE = ("verdicts", "trust", "alerts", "retries", "quarantine", "attempts", "_aside", "checkpoint")
_console = Console(highlight=False, soft_wrap=True)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make run", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument(
        "--reports", type=_count, default=REPORTS, metavar="N", help=f"how many ({REPORTS:,})"
    )
    parser.add_argument("--seed", type=int, default=7, help="of the sample (7)")
    parser.add_argument(
        "--out", type=Path, default=Path("out"), metavar="FOLDER", help="for the results (out)"
    )
    options = parser.parse_args(argv)
    return run_sample(options.reports, options.out, options.seed)


def run_sample(reports: int = REPORTS, out: Path = Path("out"), seed: int = 7) -> int:
    """The whole run; 0 if every figure is right, 1 if not, 130 if it was interrupted."""
    _console.print(
        f"[bold]conquiet {__version__}[/] on Python {platform.python_version()}, {platform.machine()}"
    )
    logging.getLogger("conquiet").setLevel(
        logging.CRITICAL
    )  # the sample breaks things on purpose, thousands of times
    try:
        return _run(reports, out, seed)
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


def _run(reports: int, out: Path, seed: int) -> int:
    began = perf_counter()
    _clear(out)
    _console.print(f"  java        {escape(find_java().describe())}")
    with (
        _told("redis", RedisServer(appendonly=True)) as redis_server,
        _told("postgresql", PostgresServer()) as postgres,
        connect(redis_server.url) as redis,
        open_store(jobs_dsn := postgres.create_database("jobs")) as store,
    ):
        queue = RedisStreamsQueue(redis, QueueConfig(_STREAM, _GROUP, "producer"))
        sample = Sample(reports, seed)
        _enqueue(queue, redis, sample, reports, out)
        with _spark() as spark:
            lost = _reconcile(spark, redis_server.url, jobs_dsn, out, sample)
            with _sessions(postgres.create_database("reports")) as sessions:
                with _progress() as progress:
                    work_off(store, sessions, sample.posts, sample.truth.retried, progress)
                add_retries(spark, sessions, out, SAMPLE_RULES)
            found = counted(spark, out)
            _write_report(spark, store, out, lost)
        found.pending = queue.backlog_stats().pending
        found.unfinished_jobs = _unfinished(store)
    return _say_whether_right(list(compared(sample.truth, found)), out, perf_counter() - began)


def _clear(out: Path) -> None:
    """The servers are new, so what another run left belongs to nothing."""
    for name in _MADE:
        shutil.rmtree(out / name, ignore_errors=True)
    out.mkdir(parents=True, exist_ok=True)


@contextmanager
def _told(name: str, server: Any) -> Iterator[Any]:
    began = perf_counter()
    with server:
        _console.print(f"  {name:<11} {server.describe()}, ready after {perf_counter() - began:.1f} s")
        yield server


@contextmanager
def _spark() -> Iterator[SparkSession]:
    from conquiet.spark import show_progress, spark_session

    began = perf_counter()
    # Nothing waits for a watermark here: batches without rows would only take time.
    spark = spark_session("conquiet sample", conf={"spark.sql.streaming.noDataMicroBatches.enabled": False})
    _console.print(
        f"  spark       {spark.version}, {spark.sparkContext.master}, ready after {perf_counter() - began:.1f} s"
    )
    listener = show_progress(spark)
    try:
        yield spark
    finally:
        listener.stop()
        spark.stop()


@contextmanager
def _sessions(dsn: str) -> Iterator[sessionmaker[Session]]:
    sessions = open_database(dsn, pool_size=10)
    try:
        yield sessions
    finally:
        sessions.kw["bind"].dispose()


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=_console,
    )


def _enqueue(queue: RedisStreamsQueue, redis: Redis, sample: Sample, reports: int, out: Path) -> None:
    """Entries into the stream, and beside it the table of what the platforms say."""
    with _progress() as progress, MetricsFile(out / "metrics.parquet") as metrics:
        bar = progress.add_task("enqueued", total=reports)
        for chunk in sample:
            queue.enqueue_many([entry for entry in chunk.entries if isinstance(entry, dict)])
            with redis.pipeline(transaction=False) as pipe:  # `enqueue` would not take what is no JSON object
                for entry in chunk.entries:
                    if isinstance(entry, str):
                        pipe.xadd(_STREAM, {"data": entry})
                pipe.execute()
            metrics.write(chunk.metrics)
            progress.update(bar, completed=sample.truth.reports)


def _reconcile(spark: SparkSession, url: str, jobs_dsn: str, out: Path, sample: Sample) -> int:
    """All that is in the stream now: judged, written, and only then acknowledged. A month, in time lapse.

    Returns how many entries the source could not find again.
    """
    from conquiet.reconcile.spark import RetryJobs, read_metrics, reconcile_stream

    entries = sample.truth.entries
    at_once = max(_BATCH, entries // _BATCHES + 1)
    ends = itertools.count(at_once, at_once)
    source = {"url": url, "stream": _STREAM, "group": _GROUP, "consumer": "make-run"}
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


def _write_report(spark: SparkSession, store: JobStore, out: Path, lost: int) -> None:
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


def _unfinished(store: JobStore) -> int:
    stats = store.stats(QUEUE).get(QUEUE) or QueueStats(QUEUE)
    return stats.ready + stats.delayed + stats.in_flight + stats.expired + stats.failed


def _say_whether_right(lines: list[Line], out: Path, seconds: float) -> int:
    table = Table("", "figure", "generated", "found")
    group = ""
    for line in lines:
        is_right = line.expected == line.found
        table.add_row(
            "" if line.group == group else line.group,
            escape(line.name),
            f"{line.expected:,}",
            f"[{'green' if is_right else 'red'}]{line.found:,}[/]",
        )
        group = line.group
    _console.print(table)
    wrong = [line for line in lines if line.expected != line.found]
    if wrong:
        _console.print(f"[bold red]WRONG:[/] {len(wrong)} of {len(lines)} figures, in {seconds:.1f} s")
        return 1
    _console.print(
        f"[bold green]right:[/] all {len(lines)} figures are the generator's, in {seconds:.1f} s. "
        f"Tables are in {escape(str(out))}; look at {escape(str(out / 'report.html'))}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
