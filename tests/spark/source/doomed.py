"""A source that ends its driver at a named point: `CONQUIET_DOOM="<point> <nth> <pid of the driver>"`."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from conquiet.queue import connect
from conquiet.spark.source.blocks import Block
from conquiet.spark.source.ledger import Claim, Ledger
from conquiet.spark.source.stream import ConquietStreamReader
from pyspark_conquiet import DefaultSource

DOOM = "CONQUIET_DOOM"
POINTS = (
    "opened",  # the ledger is open, nothing is read yet
    "claimed",  # a block is in the ledger, in no offset
    "offset",  # the offset is made, not logged
    "planned",  # the offset is logged, the batch about to run
    "reading",  # a task has handed out its first rows
    "written",  # the sink has the batch, the commit log does not
    "committed",  # the commit log has it, nothing is acknowledged
    "settled",  # a first block of it is acknowledged
)

_times: dict[str, int] = {}


def reached(point: str) -> None:
    doom = os.environ.get(DOOM)
    if doom is None:
        return
    where, nth, driver = doom.split()
    _times[point] = _times.get(point, 0) + 1
    if point == where and _times[point] == int(nth):
        # The driver's Python and its JVM are one process group; Spark's Python processes have another.
        os.killpg(os.getpgid(int(driver)), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)


class DoomedSource(DefaultSource):
    @classmethod
    def name(cls) -> str:
        return "doomed"

    def streamReader(self, schema: StructType) -> DoomedReader:
        return DoomedReader(self.options, schema)


class DoomedReader(ConquietStreamReader):
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        if start["blocks"]:
            reached("committed")
        end = super().latestOffset(start, limit)
        if end != start:
            reached("offset")
        return end

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        partitions = super().partitions(start, end)
        reached("planned")
        return partitions

    def read(self, partition: InputPartition) -> Iterator[Any]:
        for batch in super().read(partition):
            yield batch
            reached("reading")

    def make_ledger(self, query: str) -> Ledger:
        options = self.options
        return DoomedLedger(connect(options.url), options.stream, options.group, options.consumer, query)


class DoomedLedger(Ledger):
    def open(self) -> list[Block]:
        blocks = super().open()
        reached("opened")
        return blocks

    def claim(self, count: int, bound: str = "") -> Claim | None:
        claim = super().claim(count, bound)
        if claim is not None:
            reached("claimed")
        return claim

    def settle(self, block: Block) -> int:
        acked = super().settle(block)
        reached("settled")
        return acked
