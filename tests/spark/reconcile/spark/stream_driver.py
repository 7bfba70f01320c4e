"""A driver of the streaming reconciliation, for tests that kill it.

`python -m tests.spark.reconcile.spark.stream_driver '{…}'` runs a query for each job store, from one stream to
separate folders. It dies at a point of the source (`tests.spark.source.doomed`), or around one of the writes of a
micro-batch: `"before trust"`, `"after jobs"`.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.readwriter import DataFrameWriter
from pyspark.sql.streaming.query import StreamingQuery

from conquiet.reconcile.spark import RetryJobs, read_metrics, reconcile_stream
from conquiet.spark import spark_session
from tests.acceptance.fleet import READY, ROOT
from tests.spark.source.doomed import DOOM, DoomedSource, reached

STREAM = "reports"
# The writes of a micro-batch in order, by the last names of their folders.
WRITES = (
    "aside quarantine",
    "aside judged",
    "verdicts",
    "trust",
    "alerts",
    "retries",
    "quarantine",
    "alerted",
    "jobs",
)
POINTS = (*(f"before {write}" for write in WRITES), "after jobs")


@dataclass(frozen=True)
class Work:
    """The instructions for a driver: `stores` are DSNs of job stores, by the name of the query's group and folder."""

    name: str
    url: str
    folder: str
    stores: dict[str, str]
    as_of: str
    die_at: str | None = None
    die_at_nth: int = 1
    entries_per_batch: int = 100

    def command(self) -> list[str]:
        return [sys.executable, "-m", "tests.spark.reconcile.spark.stream_driver", json.dumps(asdict(self))]


def start(
    spark: SparkSession, work: Work, group: str, source: str = "conquiet", **trigger: Any
) -> StreamingQuery:
    """The query of one group. All attempts are made at the same time: the verdict is the same in every process."""
    options = {"url": work.url, "stream": STREAM, "group": group, "consumer": "query", "heartbeat": "1"}
    options |= {"maxEntriesPerTrigger": str(work.entries_per_batch), "partitions": "2"}
    folder = Path(work.folder, group)
    return reconcile_stream(
        spark.readStream.format(source).options(**options).load(),
        lambda: read_metrics(spark, f"{work.folder}/metrics.parquet"),
        str(folder / "out"),
        str(folder / "checkpoint"),
        retry_jobs=RetryJobs(work.stores[group]),
        as_of=lambda: datetime.fromisoformat(work.as_of),
        trigger=trigger or {"availableNow": True},
    )


def main() -> None:
    work = Work(**json.loads(sys.argv[1]))
    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, [os.environ.get("PYTHONPATH"), str(ROOT)])
    )  # for Spark's own Python processes
    if work.die_at is not None:
        os.environ[DOOM] = f"{_as_word(work.die_at)} {work.die_at_nth} {os.getpid()}"
    conf = {"spark.driver.memory": "700m"}
    spark = spark_session("driver", "local[2]", conf)
    spark.dataSource.register(DoomedSource)
    _doom_writes()
    queries = [start(spark, work, group, "doomed") for group in work.stores]
    os.write(1, READY)
    for query in queries:
        query.awaitTermination()
    os._exit(0)  # an orderly stop of Spark has nothing left to do


def _doom_writes() -> None:
    """Let Spark's writer report each write."""
    writer: Any = DataFrameWriter
    parquet, save, choose = writer.parquet, writer.save, writer.format

    def doomed_parquet(self: Any, path: str) -> None:
        _around(_name_of(path), lambda: parquet(self, path))

    def doomed_save(self: Any) -> None:
        if self.chosen == "noop":
            save(self)
        else:
            _around("jobs", lambda: save(self))

    def remembered_format(self: Any, name: str) -> Any:
        self.chosen = name
        return choose(self, name)

    writer.parquet, writer.save, writer.format = doomed_parquet, doomed_save, remembered_format


def _around(name: str, write: Callable[[], None]) -> None:
    reached(_as_word(f"before {name}"))
    write()
    reached(_as_word(f"after {name}"))


def _as_word(point: str) -> str:
    return point.replace(" ", "-")


def _name_of(path: str) -> str:
    parts = Path(path).parts
    if "_aside" in parts:
        return f"aside {parts[-1]}"
    return next(name for name in WRITES if name in parts)


def _end_with_the_parent() -> None:
    os.read(0, 1)
    os._exit(1)


if __name__ == "__main__":
    main()
