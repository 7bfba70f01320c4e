"""Writes rows to a Redis stream, each as an entry with the single field `data`, like `RedisStreamsQueue.enqueue`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pyspark.sql.types import StringType, StructType

from conquiet.errors import QueueConfigError, QueueError, QueuePayloadError, StagingLostError
from conquiet.queue import connect
from conquiet.queue.wire import Exchange, tagged
from conquiet.spark.sink.journal import Journal
from conquiet.spark.sink.json_rows import JsonRows
from conquiet.spark.sink.json_texts import first_refused
from conquiet.spark.sink.options import StreamOptions
from conquiet.spark.sink.stream_staging import StagingList, chunks
from conquiet.spark.sink.writers import Batch, Staged

if TYPE_CHECKING:
    from pyarrow import Array, RecordBatch

__all__ = ["StreamSink"]

_SOCKET_SECONDS = 60.0  # long: a timeout would fail the whole batch
_COLUMN = "data"


class StreamSink:
    """Writes the column `data` unchanged or, if there is no such column, all columns of a row as one JSON object."""

    def __init__(self, options: StreamOptions, schema: StructType) -> None:
        connect(options.url).close()  # checks the URL
        self._options = options
        self._rows: JsonRows | None = None
        if not schema.names:
            raise QueueConfigError(
                "a DataFrame without columns has nothing to write: select a column data, or any"
            )
        if _COLUMN not in schema.names:
            self._rows = JsonRows(schema)
        elif not isinstance(schema[_COLUMN].dataType, StringType):
            raise QueueConfigError(
                f"the column data is {schema[_COLUMN].dataType.simpleString()}, not a string of JSON: make it with "
                'to_json(col("data")), or rename it to write all columns as one JSON object'
            )
        self._prefix = f"conquiet:sink:{tagged(options.stream)}"  # in the stream's slot of a cluster

    def stage(self, batches: Iterator[RecordBatch], batch: Batch, attempt: str) -> Staged:
        rows = 0
        with self._exchange() as exchange:
            staging = StagingList(
                exchange, self._staging(batch, attempt), self._attempts(batch), self._options.staging_seconds
            )
            for arrow in batches:
                for count, chunk in chunks(self._texts(arrow, rows)):
                    staging.push(chunk)
                    rows += count
        return Staged(batch, attempt, rows, staging.chunks)

    def publish(self, staged: Sequence[Staged], batch: Batch) -> None:
        filled = [one for one in staged if one.rows]
        if not filled:
            return
        lists = [(self._staging(one.batch, one.attempt), one.parts) for one in filled]
        with self._exchange() as exchange:
            journal = self._journal(exchange, batch)
            journal.begin(batch.number, lists)
            # From here a crash does no harm: the batch is recorded, and the next driver continues it.
            try:
                journal.finish()
            except (QueueError, StagingLostError) as error:
                error.add_note(
                    f"{batch} is recorded and partly published. The same query, or a write with the options "
                    f"sinkId={batch.sink} and batchId={batch.number}, publishes the rest and nothing twice"
                )
                raise
            journal.discard([key for key, _ in lists], self._attempts(batch))

    def discard(self, staged: Sequence[Staged], batch: Batch) -> None:
        lists = [self._staging(one.batch, one.attempt) for one in staged if one.rows]
        with self._exchange() as exchange:
            self._journal(exchange, batch).discard(lists, self._attempts(batch))

    def _texts(self, arrow: RecordBatch, before: int) -> Array:
        if self._rows is not None:
            return self._rows.encoded(arrow)
        texts = arrow.column(_COLUMN)
        if refused := first_refused(texts):
            row, reason = refused
            raise QueuePayloadError(
                f"data of row {before + row + 1} of this task was refused: {reason}. Nothing is published: leave such "
                "rows out, or repair them, before they are written"
            )
        return texts

    def _journal(self, exchange: Exchange, batch: Batch) -> Journal:
        seconds = self._options.journal_seconds
        return Journal(exchange, f"{self._prefix}:journal:{batch.sink}", self._options.stream, seconds)

    def _staging(self, batch: Batch, attempt: str) -> str:
        return f"{self._prefix}:staging:{batch.sink}:{batch.number}:{attempt}"

    def _attempts(self, batch: Batch) -> str:
        """Return the key of a set with the staging lists of all attempts at the batch, including killed ones."""
        return f"{self._prefix}:attempts:{batch.sink}:{batch.number}"

    @contextmanager
    def _exchange(self) -> Iterator[Exchange]:
        with connect(self._options.url, socket_timeout=_SOCKET_SECONDS) as client:
            yield Exchange(client, awaits=False, key=self._options.stream)
