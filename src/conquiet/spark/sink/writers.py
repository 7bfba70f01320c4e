"""The writers that Spark calls to write rows to a Redis stream or a job store.

Spark calls `write` on an executor for each task attempt, and then on the driver either `commit`, with the messages of
the successful attempts, or `abort`. Attempts only stage their rows; the commit publishes the staged rows and keeps a
journal, so that neither repeated attempts nor replayed batches add a row twice.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from conquiet.errors import JobConfigError, QueueConfigError
from conquiet.spark.sink.options import JobOptions, StreamOptions, parsed

if TYPE_CHECKING:
    from pyarrow import RecordBatch

__all__ = ["Batch", "ConquietBatchWriter", "ConquietStreamWriter", "Sink", "Staged"]


@dataclass(frozen=True)
class Batch:
    """A batch of a query. A replay has the same name and number."""

    sink: str
    number: int

    def __str__(self) -> str:
        return f"batch {self.number} of {self.sink}"


@dataclass
class Staged(WriterCommitMessage):
    """Identifies what one task attempt staged, and the number of parts; empty if there are no rows."""

    batch: Batch
    attempt: str
    rows: int
    parts: int


class Sink(Protocol):
    """The target of rows. Each call opens its own connections, because Spark copies this object to other processes."""

    def stage(self, batches: Iterator[RecordBatch], batch: Batch, attempt: str) -> Staged:
        """Stage the rows; called on an executor."""

    def publish(self, staged: Sequence[Staged], batch: Batch) -> None:
        """Publish the staged rows once per batch; called on the driver. Finishes a batch that is partly published."""

    def discard(self, staged: Sequence[Staged], batch: Batch) -> None:
        """Remove the staged rows unless publishing has begun; called on the driver."""


class _Writer:
    """The common part of batch and streaming writers."""

    def __init__(
        self, options: Mapping[str, str], schema: StructType, overwrite: bool, *, streaming: bool
    ) -> None:
        self.options = parsed(options, streaming=streaming)
        if overwrite:
            raise QueueConfigError(
                'format("conquiet") only appends: use mode("append") for a batch write, outputMode("append") or '
                '"update" for a streaming one'
            )
        self.sink = self.make_sink(self.options, schema)
        # Each JVM has its own folder, by which `_refuse_remote` recognizes a task in another JVM.
        self._jvm = os.environ.get("SPARK_LOCAL_DIRS")

    def make_sink(self, options: StreamOptions | JobOptions, schema: StructType) -> Sink:
        if isinstance(options, StreamOptions):
            from conquiet.spark.sink.streams import StreamSink

            return StreamSink(options, schema)
        from conquiet.spark.sink.jobs import JobSink

        return JobSink(options, schema)

    def stage(self, batches: Iterator[RecordBatch], batch: Batch) -> Staged:
        self._refuse_remote()
        return self.sink.stage(batches, batch, secrets.token_hex(8))

    def _refuse_remote(self) -> None:
        """Executors of a cluster do not see the driver's SQLite file; on a local master everything is one JVM."""
        is_file = isinstance(self.options, JobOptions) and self.options.dsn.startswith("sqlite:")
        if is_file and os.environ.get("SPARK_LOCAL_DIRS") != self._jvm:
            raise JobConfigError(
                "sqlite:// is a file, which executors elsewhere do not have: use it on a local master (local[*]) "
                "only, and postgresql://user:password@host/database on a cluster"
            )


class ConquietBatchWriter(_Writer, DataSourceArrowWriter):
    """`df.write.format("conquiet").mode("append")`."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        super().__init__(options, schema, overwrite, streaming=False)
        # The name is chosen here, before Spark copies this object, so all tasks and the commit use the same one.
        self._batch = Batch(
            self.options.sink_id or f"write-{secrets.token_hex(8)}", self.options.batch_id or 0
        )

    def write(self, iterator: Iterator[RecordBatch]) -> Staged:
        return self.stage(iterator, self._batch)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        self.sink.publish(_staged(messages), self._batch)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        self.sink.discard(_staged(messages), self._batch)


class ConquietStreamWriter(_Writer, DataSourceStreamArrowWriter):
    """`df.writeStream.format("conquiet")`.

    The query id identifies its batches and is part of the checkpoint: a query that restarts without its checkpoint is
    another query, with new batches.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        super().__init__(options, schema, overwrite, streaming=True)

    def write(self, iterator: Iterator[RecordBatch]) -> Staged:
        context = TaskContext.get()
        assert context is not None
        query, number = (context.getLocalProperty(name) for name in (_QUERY_ID, _BATCH_ID))
        sink = self.options.sink_id or query
        if sink is None or number is None:
            raise QueueConfigError(
                "this version of Spark does not tell its tasks which query and batch they write for, so a "
                "replay could not be recognized: write from foreachBatch, with the options sinkId and batchId"
            )
        return self.stage(iterator, Batch(sink, int(number)))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        if staged := _staged(messages):  # no task, no rows
            self.sink.publish(staged, Batch(staged[0].batch.sink, batchId))

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        if staged := _staged(messages):
            self.sink.discard(staged, Batch(staged[0].batch.sink, batchId))


# Properties that a streaming query sets for its tasks (StreamExecution.QUERY_ID_KEY, MicroBatchExecution.BATCH_ID_KEY).
_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"


def _staged(messages: Sequence[WriterCommitMessage | None]) -> list[Staged]:
    return [message for message in messages if isinstance(message, Staged)]
