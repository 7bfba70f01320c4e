"""Sinks that end their driver at a named point: `CONQUIET_DOOM="<point> <nth> <pid of the driver>"`."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from typing import Any

from pyspark.sql.types import StructType

from conquiet.queue.wire.exchange import Exchange
from conquiet.spark.sink.jobs import JobSink
from conquiet.spark.sink.journal import Journal
from conquiet.spark.sink.options import JobOptions, StreamOptions
from conquiet.spark.sink.postgres_staging import PostgresStaging
from conquiet.spark.sink.streams import StreamSink
from conquiet.spark.sink.writers import Batch, ConquietStreamWriter, Sink, Staged
from pyspark_conquiet import DefaultSource

DOOM = "CONQUIET_DOOM"
STREAM_POINTS = (
    "published",  # all rows are in the stream, but not in the commit log
    "midway",  # some chunks are in the stream
    "begun",  # the journal has the batch, the stream has none of it
    "staged",  # the tasks are done, the journal has no entry
    "staging",  # a task has begun to stage
)
JOB_POINTS = (
    "published",  # the jobs are there, but not in the commit log
    "uncommitted",  # the statement has run, its transaction is open
    "staged",
    "staging",
)


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


_times: dict[str, int] = {}


class DoomedSource(DefaultSource):
    @classmethod
    def name(cls) -> str:
        return "doomed"

    def streamWriter(self, schema: StructType, overwrite: bool) -> ConquietStreamWriter:
        return DoomedWriter(self.options, schema, overwrite)


class DoomedWriter(ConquietStreamWriter):
    def make_sink(self, options: StreamOptions | JobOptions, schema: StructType) -> Sink:
        if isinstance(options, StreamOptions):
            return DoomedStreamSink(options, schema)
        return DoomedJobSink(options, schema)


class _Doomed:
    def stage(self, batches: Any, batch: Batch, attempt: str) -> Staged:
        def doomed() -> Any:
            for arrow in batches:
                yield arrow
                reached("staging")

        staged: Staged = super().stage(doomed(), batch, attempt)  # type: ignore[misc]
        return staged

    def publish(self, staged: Sequence[Staged], batch: Batch) -> None:
        reached("staged")
        super().publish(staged, batch)  # type: ignore[misc]
        reached("published")


class DoomedStreamSink(_Doomed, StreamSink):
    def _journal(self, exchange: Exchange, batch: Batch) -> Journal:
        seconds = self._options.journal_seconds
        return DoomedJournal(exchange, f"{self._prefix}:journal:{batch.sink}", self._options.stream, seconds)


class DoomedJournal(Journal):
    def begin(self, number: int, staging: Sequence[tuple[str, int]]) -> bool:
        begun = super().begin(number, staging)
        reached("begun")
        return begun

    def step(self, batch: bytes, at: bytes, staging: bytes) -> bool:
        more = super().step(batch, at, staging)
        reached("midway")
        return more


class DoomedJobSink(_Doomed, JobSink):
    def __init__(self, options: JobOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._staging = DoomedStaging(options)


class DoomedStaging(PostgresStaging):
    def _remove_others(self, connection: Any, attempts: Sequence[int], batch: Batch) -> None:
        super()._remove_others(connection, attempts, batch)
        reached("uncommitted")
