"""A driver in its own process, for tests that kill it: `python -m tests.spark.sink.driver '{…}'`.

It reads files of lines, one file per batch, and writes them to a sink until none is left.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from dataclasses import asdict, dataclass

from conquiet.spark import spark_session
from tests.acceptance.fleet import READY, ROOT
from tests.spark.sink.doomed import DOOM, DoomedSource


@dataclass(frozen=True)
class Work:
    """The instructions for a driver: `sinks` are options of the sinks, by the name of the folder of each."""

    name: str
    folder: str
    sinks: dict[str, dict[str, str]]
    die_at: str | None = None
    die_at_nth: int = 1

    def command(self) -> list[str]:
        return [sys.executable, "-m", "tests.spark.sink.driver", json.dumps(asdict(self))]


def main() -> None:
    work = Work(**json.loads(sys.argv[1]))
    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    if work.die_at is not None:
        os.environ[DOOM] = f"{work.die_at} {work.die_at_nth} {os.getpid()}"
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, [os.environ.get("PYTHONPATH"), str(ROOT)])
    )  # for Spark's own Python processes
    conf = {
        "spark.driver.memory": "700m",
        "spark.sql.execution.arrow.maxRecordsPerBatch": 400,
    }
    spark = spark_session("driver", "local[2]", conf)
    spark.dataSource.register(DoomedSource)
    for name, options in work.sinks.items():
        columns = (
            ["value AS data"]
            if "url" in options
            else ["get_json_object(value, '$.id') AS id", "value AS payload"]
        )
        source = spark.readStream.option("maxFilesPerTrigger", 1).text(f"{work.folder}/{name}/lines")
        lines = source.repartition(2).selectExpr(*columns)
        query = (
            lines.writeStream.format("doomed")
            .options(**options)
            .option("checkpointLocation", f"{work.folder}/{name}/checkpoint")
            .trigger(availableNow=True)
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
