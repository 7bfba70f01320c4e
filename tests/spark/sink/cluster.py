"""Writes on two executor processes: one task fails, another loses its executor, each with a part of its rows staged.

`python -m tests.spark.sink.cluster '{…}'`. (Speculation does not happen here: Spark needs another host for it.)
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from conquiet.spark import spark_session
from tests.acceptance.fleet import ROOT
from tests.class_archive import QUICK

ROWS = 4_000
PARTITIONS = 4
BATCH_ROWS = 100
PADDING = "x" * 1_000


@dataclass(frozen=True)
class Work:
    name: str
    folder: str
    sinks: list[dict[str, str]]
    refused: dict[str, str]

    def command(self) -> list[str]:
        return [sys.executable, "-m", "tests.spark.sink.cluster", json.dumps(asdict(self))]


def main() -> None:
    work = Work(**json.loads(sys.argv[1]))
    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, [os.environ.get("PYTHONPATH"), str(ROOT)])
    )  # for the executors, and their Python processes
    conf = {
        "spark.driver.memory": "700m",
        "spark.executor.extraJavaOptions": QUICK,
        "spark.executor.memory": "512m",
        "spark.sql.execution.arrow.maxRecordsPerBatch": BATCH_ROWS,
    }
    spark = spark_session("cluster", "local-cluster[2,1,1024]", conf)
    _refused(spark, work)
    for sink in work.sinks:
        columns = ["data"] if "url" in sink else ["get_json_object(data, '$.id') AS id", "data AS payload"]
        mishaps = _Mishaps(Path(work.folder, "url" if "url" in sink else "dsn"))
        # Long enough that a few batches fill the buffers: otherwise no row reaches the sink before a mishap.
        rows = spark.range(0, ROWS, 1, PARTITIONS).selectExpr(
            f"""concat('{{"id":"job-', id, '","padding":"{PADDING}"}}') AS data"""
        )
        rows = rows.mapInArrow(mishaps.happen, "data STRING").selectExpr(*columns)
        rows.write.format("conquiet").mode("append").options(**sink).save()
    os._exit(0)


def _refused(spark: SparkSession, work: Work) -> None:
    try:
        rows = spark.sql("SELECT 'a' AS id, '{}' AS payload")
        rows.write.format("conquiet").mode("append").options(**work.refused).save()
    except PySparkException as error:
        Path(work.folder, "refused").write_text(str(error))


class _Mishaps:
    """The faults of the tasks, each once, after a part of their rows has reached the sink."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir()

    def happen(self, batches: Iterator[Any]) -> Iterator[Any]:
        context = TaskContext.get()
        assert context is not None
        partition = context.partitionId()
        for number, batch in enumerate(batches):
            yield batch
            if number == 4 and partition == 0 and self._first("killed"):
                os.kill(_parent(os.getppid()), signal.SIGKILL)  # the executor, the parent of the daemon
            if number == 4 and partition == 1 and self._first("failed"):
                raise RuntimeError("as planned")

    def _first(self, what: str) -> bool:
        try:
            (self._folder / what).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _end_with_the_parent() -> None:
    os.read(0, 1)
    os._exit(1)


if __name__ == "__main__":
    main()
