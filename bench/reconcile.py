"""Reconciliation in bulk, from Parquet to counted verdicts: Spark on all cores against DuckDB on the same files.

Both do the same work: leave out invalid rows, deduplicate reports, find the newest metrics of each post, join, compute
every column of the verdict. Both must get the same sums. `tenth` is ours on a tenth of the rows (its time counts
tenfold), `skewed` is ours with a third of all reports from one affiliate, `hot_post` also has these on one post.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from bench import peers
from bench.harness import Bench, timed
from bench.reconcile_data import AS_OF, EVEN, HOT_POST, SKEWED, write_metrics, write_reports
from bench.reconcile_duckdb import query
from conquiet.reconcile.spark import read_metrics, read_reports, reconcile_batch
from conquiet.spark import spark_session

BENCH = Bench("reconcile")
MILLION = 1_000_000

Sums = list[list[str | int | None]]


folder = BENCH.needs(lambda: tempfile.TemporaryDirectory(prefix="conquiet-bench-"))


@contextmanager
def _session() -> Iterator[SparkSession]:
    logged = {"enabled": True, "dir": folder(), "compress": False, "rolling.enabled": False}
    conf = {f"spark.eventLog.{name}": value for name, value in logged.items()}
    session = spark_session("bench", "local[*]", conf)
    yield session
    session.stop()


spark = BENCH.needs(_session)
known: dict[tuple[int, str], Sums] = {}


def files(count: int, kind: str) -> tuple[str, str]:
    """Return the folders with this many reports and metrics, written at the first use."""
    reports, metrics = (Path(folder()) / f"{name}-{count}" for name in (kind, "metrics"))
    if not metrics.exists():
        write_metrics(metrics, count)
    if not reports.exists():
        write_reports(reports, count, kind)
    return str(reports), str(metrics)


def ours(count: int, kind: str = EVEN) -> float:
    reports, metrics = files(count, kind)
    sums: Sums = []

    def reconcile() -> None:
        inputs = read_reports(spark(), reports), read_metrics(spark(), metrics)
        verdicts = reconcile_batch(*inputs, as_of=AS_OF).verdicts
        summed = verdicts.groupBy("status", "level").agg(
            f.count("*"),
            f.sum("report_id"),
            f.sum("attempt"),
            f.sum(f.length("affiliate_id") + f.length("platform")),
            f.sum(f.floor(f.col("max_diff") * 1000)),
            f.sum(f.floor(f.col("confidence") * 1000)),
            f.sum(f.length("trust_event")),
            f.sum("trust_delta"),
            f.sum(f.size("missing_fields")),
            f.sum(f.unix_seconds("scheduled_retry_at")),
        )
        sums[:] = [list(row) for row in summed.collect()]

    seconds = timed(reconcile)
    _same(sums, count, kind)
    return seconds


@dataclass(frozen=True)
class Cost:
    """What the tasks of one reconciliation used, from Spark's event log."""

    cpu_us: float
    shuffled_bytes: int
    largest_task_bytes: int


def cost(count: int) -> Cost:
    ours(count)  # writes the files, and warms up
    log = Path(folder()) / spark().sparkContext.applicationId
    if not log.exists():
        log = log.with_name(f"{log.name}.inprogress")
    begin = log.stat().st_size
    ours(count)
    with log.open("rb") as events:
        events.seek(begin)
        used = [event["Task Metrics"] for event in map(json.loads, events) if "Task Metrics" in event]
    return Cost(
        sum(task["Executor CPU Time"] for task in used) / 1000,
        sum(task["Shuffle Write Metrics"]["Shuffle Bytes Written"] for task in used),
        max(task["Peak Execution Memory"] for task in used),
    )


def duckdb(count: int) -> float:
    reports, metrics = files(count, EVEN)
    if not peers.PYTHON.exists():
        raise SystemExit("duckdb needs .venv-bench; run: make peers")
    result = subprocess.run(
        [peers.PYTHON, peers.FOLDER / "duckdb.py"],
        env={**os.environ, "BENCH_QUERY": query(reports, metrics)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    answer = json.loads(result.stdout)
    _same(answer["rows"], count, EVEN)
    return float(answer["seconds"])


def _same(sums: Sums, count: int, kind: str) -> None:
    """Check that all variants agree with the first one."""
    ordered = sorted(sums, key=str)
    expected = known.setdefault((count, kind), ordered)
    assert ordered == expected, f"not the same verdicts:\n{ordered}\n{expected}"


BENCH.compare(
    "batch",
    unit="reports",
    count=10_000_000,
    ours=ours,
    duckdb=duckdb,
    tenth=lambda count: 10 * ours(count // 10),
    skewed=lambda count: ours(count, SKEWED),
    hot_post=lambda count: ours(count, HOT_POST),
)
BENCH.figure("cpu_us_per_report", unit="µs of a core", measure=lambda: cost(MILLION).cpu_us / MILLION)
BENCH.figure("shuffle_bytes_per_report", unit="bytes", measure=lambda: cost(MILLION).shuffled_bytes / MILLION)
BENCH.figure("largest_task_mb", unit="MB", measure=lambda: cost(MILLION).largest_task_bytes / 1e6)
