"""`make run`: runs the whole pipeline on a seeded sample and checks every figure against the generator's.

reports → Redis stream → Spark: verdicts, trust, alerts, quarantine → retries as leased jobs on PostgreSQL
        → a worker on the Consumer Engine, unreliable platforms, circuit breakers → tables, report.html, the check
"""

from __future__ import annotations

import argparse
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
from conquiet.demo.stages import GROUP, STREAM, enqueue, reconcile, write_page
from conquiet.embedded import PostgresServer, RedisServer, find_java
from conquiet.errors import ConquietError
from conquiet.jobs import JobStore, QueueStats, open_store
from conquiet.queue import QueueConfig, RedisStreamsQueue, connect
from conquiet.reconcile import open_database

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from sqlalchemy.orm import Session, sessionmaker

__all__ = ["REPORTS", "main", "run_sample"]

REPORTS = 50_000
_MADE = ("verdicts", "trust", "alerts", "retries", "quarantine", "attempts", "_aside", "checkpoint")
_console = Console(highlight=False, soft_wrap=True)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make run", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument(
        "--reports", type=_count, default=REPORTS, metavar="N", help=f"number of reports ({REPORTS:,})"
    )
    parser.add_argument("--seed", type=int, default=7, help="seed of the sample (7)")
    parser.add_argument(
        "--out", type=Path, default=Path("out"), metavar="FOLDER", help="folder for the results (out)"
    )
    options = parser.parse_args(argv)
    return run_sample(options.reports, options.out, options.seed)


def run_sample(reports: int = REPORTS, out: Path = Path("out"), seed: int = 7) -> int:
    """Run everything. Return 0 if every figure is right, 1 if not, 130 if interrupted."""
    _console.print(
        f"[bold]conquiet {__version__}[/] on Python {platform.python_version()}, {platform.machine()}"
    )
    logging.getLogger("conquiet").setLevel(
        logging.CRITICAL
    )  # the sample causes thousands of failures on purpose
    try:
        return _run(reports, out, seed)
    except ConquietError as error:
        _console.print(f"[red]failed:[/] {escape(str(error))}")
        return 1
    except KeyboardInterrupt:
        _console.print("stopped. The servers of this run are removed; the next run starts new ones")
        return 130


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
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
        queue = RedisStreamsQueue(redis, QueueConfig(STREAM, GROUP, "producer"))
        sample = Sample(reports, seed)
        enqueue(queue, redis, sample, reports, out, _progress())
        with _spark() as spark:
            lost = reconcile(spark, redis_server.url, jobs_dsn, out, sample)
            with _sessions(postgres.create_database("reports")) as sessions:
                with _progress() as progress:
                    work_off(store, sessions, sample.posts, sample.truth.retried, progress)
                add_retries(spark, sessions, out, SAMPLE_RULES)
            found = counted(spark, out)
            write_page(spark, store, out, lost)
        found.pending = queue.backlog_stats().pending
        found.unfinished_jobs = _unfinished(store)
    return _say_whether_right(list(compared(sample.truth, found)), out, perf_counter() - began)


def _clear(out: Path) -> None:
    """Remove the results of an earlier run: they do not match the new servers."""
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
    from conquiet.spark import command_session, show_progress

    began = perf_counter()
    # Batches without rows only advance the watermark, which is not needed here.
    settings = {"spark.sql.streaming.noDataMicroBatches.enabled": False}
    _console.print("  spark       starts")
    with command_session("conquiet sample", conf=settings) as spark:
        _console.print(
            f"  spark       {spark.version}, {spark.sparkContext.master}, ready after {perf_counter() - began:.1f} s"
        )
        with show_progress(spark):
            yield spark


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
        f"[bold green]right:[/] all {len(lines)} figures match the generator's, in {seconds:.1f} s. "
        f"Tables are in {escape(str(out))}; open {escape(str(out / 'report.html'))}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
