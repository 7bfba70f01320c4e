"""Batch reads: a range of a stream as it is now, without a consumer group."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from conquiet.errors import QueueConfigError
from conquiet.flow import run
from conquiet.queue import connect
from conquiet.queue.wire import Exchange, pack, rows, text
from conquiet.spark.source.options import (
    BLOCK_ENTRIES,
    checked_schema,
    positive_int,
    refuse_unknown,
    required,
)
from conquiet.spark.source.reader import BlockReader

if TYPE_CHECKING:
    from pyarrow import RecordBatch

__all__ = ["ConquietBatchReader", "Range"]

_OPTIONS = ("url", "stream", "startingId", "endingId", "startingTime", "endingTime", "partitions")
_NAMES = {name.lower(): name for name in _OPTIONS}
_PAGE_BYTES = 4 * 1024 * 1024
_FIRST_ENTRIES = 500
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass
class Range(InputPartition):
    """The part that one task reads: all entries from `lo` to `hi`, both included."""

    lo: str
    hi: str


class ConquietBatchReader(DataSourceReader):
    """Reads from `startingId` or `startingTime` to `endingId` (both included) or `endingTime` (excluded)."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        refuse_unknown(options, _NAMES)
        self._schema = checked_schema(schema)
        self._url, self._stream = required(options, "url"), required(options, "stream")
        self._partitions = positive_int(options, "partitions", os.cpu_count() or 1)
        self._lo = _edge(options, "startingId", "startingTime", "-")
        self._hi = _edge(options, "endingId", "endingTime", "+")

    def partitions(self) -> Sequence[InputPartition]:
        """Split the range from the first to the currently last entry by time. Later entries are not read."""
        with connect(self._url) as redis:
            exchange = Exchange(redis, awaits=False, key=self._stream).exchange
            what = f"plan the read of stream {self._stream!r}"
            first = run(exchange(what, pack("XRANGE", self._stream, self._lo, self._hi, "COUNT", 1), _id))
            last = run(exchange(what, pack("XREVRANGE", self._stream, self._hi, self._lo, "COUNT", 1), _id))
        if not first or not last:
            return [Range("0", "0")]  # Spark needs a partition; this one is empty
        return list(_cut(first, last, self._partitions))

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        assert isinstance(partition, Range)
        lo, entries = partition.lo, _FIRST_ENTRIES
        with BlockReader(self._url, self._stream, self._schema) as reader:
            while (batch := reader.read(lo, partition.hi, entries)).num_rows:
                yield batch
                if batch.num_rows < entries:
                    return
                lo = f"({batch.column(0)[-1].as_py()}"
                entries = max(1, min(BLOCK_ENTRIES, _PAGE_BYTES * batch.num_rows // max(1, batch.nbytes)))


def _id(reply: Any) -> str | None:
    """Return the id of the entry in the reply, or None."""
    if not (found := rows(reply)):
        return None
    entry_id = text(found[0][0])
    int(entry_id.partition("-")[0])  # ValueError if it is not an entry id
    return entry_id


def _edge(options: Mapping[str, str], by_id: str, by_time: str, default: str) -> str:
    """Return one end of the range, as an argument of XRANGE."""
    entry_id, time = options.get(by_id), options.get(by_time)
    if entry_id and time:
        raise QueueConfigError(f"options {by_id} and {by_time} exclude each other: use one of them")
    if time:
        milliseconds = _milliseconds(by_time, time)
        return str(milliseconds if default == "-" else max(0, milliseconds - 1))
    if not entry_id:
        return default
    ms, dash, seq = entry_id.partition("-")
    if not ms.isdigit() or not ms.isascii() or (dash and not (seq.isdigit() and seq.isascii())):
        raise QueueConfigError(
            f"option {by_id} must be an entry id such as 1700000000000-0, not {entry_id!r}"
        )
    return entry_id


def _milliseconds(name: str, text: str) -> int:
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        time = None
    if time is None or time.tzinfo is None or time < _EPOCH:
        raise QueueConfigError(
            f"option {name} must be a time with its offset, such as 2026-11-16T12:00:00Z, not {text!r}"
        )
    # Rounded up, which excludes entries earlier in the same millisecond.
    return -((_EPOCH - time) // timedelta(milliseconds=1))


def _cut(first: str, last: str, partitions: int) -> Iterator[Range]:
    """Split into ranges of equal duration. XRANGE takes an id without a sequence as the first or last of its ms."""
    begin, end = int(first.partition("-")[0]), int(last.partition("-")[0])
    edges = sorted({begin + (end - begin + 1) * part // partitions for part in range(partitions)})
    for number, edge in enumerate(edges):
        lo = first if number == 0 else str(edge)
        hi = last if number == len(edges) - 1 else str(edges[number + 1] - 1)
        yield Range(lo, hi)
