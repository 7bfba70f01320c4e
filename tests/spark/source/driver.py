"""A driver in its own process, for tests that kill it: `python -m tests.spark.source.driver '{…}'`.

Its sink is a folder of Parquet files for each batch id, overwritten when a batch is replayed. Without a fate it ends by
itself when there is nothing left.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

from conquiet.spark import spark_session
from tests.acceptance.fleet import READY, ROOT
from tests.spark.source.doomed import DOOM, DoomedSource, reached
from tests.spark.source.queries import CONSUMER, GROUP, STREAM


@dataclass(frozen=True)
class Work:
    """The instructions for a driver."""

    name: str
    url: str
    folder: str
    die_at: str | None = None
    die_at_nth: int = 1
    endless: bool = False
    master: str = "local[2]"
    consumer: str = CONSUMER

    def command(self) -> list[str]:
        return [sys.executable, "-m", "tests.spark.source.driver", json.dumps(asdict(self))]


def main() -> None:
    work = Work(**json.loads(sys.argv[1]))
    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    if work.die_at is not None:
        os.environ[DOOM] = f"{work.die_at} {work.die_at_nth} {os.getpid()}"
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, [os.environ.get("PYTHONPATH"), str(ROOT)])
    )  # for Spark's own Python processes
    conf = {"spark.driver.memory": "700m"}
    spark = spark_session("driver", work.master, conf)
    spark.dataSource.register(DoomedSource)
    options = {"url": work.url, "stream": STREAM, "group": GROUP, "consumer": work.consumer}
    options |= {"maxEntriesPerTrigger": "1000", "partitions": "2", "heartbeat": "1"}
    out = Path(work.folder, "out")

    def write(rows: DataFrame, number: int) -> None:
        rows.write.mode("overwrite").parquet(str(out / f"batch={number}"))
        reached("written")

    trigger: dict[str, Any] = {"processingTime": "0 seconds"} if work.endless else {"availableNow": True}
    query = (
        spark.readStream.format("doomed")
        .options(**options)
        .load()
        .writeStream.foreachBatch(write)
        .option("checkpointLocation", f"{work.folder}/checkpoint")
        .trigger(**trigger)
        .start()
    )
    os.write(1, READY)
    query.awaitTermination()
    os._exit(0)  # an orderly stop of Spark has nothing left to do


def _end_with_the_parent() -> None:
    os.read(0, 1)
    os._exit(1)


if __name__ == "__main__":
    main()
