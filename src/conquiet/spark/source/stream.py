"""The streaming source: Spark as a competing consumer of a group.

Spark calls it on the driver, in a separate Python process (`latestOffset`, `partitions`, `commit`), and on executors
(`read`). It acknowledges in `latestOffset`, whose `start` is always durably committed: Spark calls `commit` one batch
late, and not at all for the last batch.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from conquiet.errors import DataLossError
from conquiet.queue import connect
from conquiet.spark.source.blocks import Block, Offset, spread
from conquiet.spark.source.keeper import Keeper
from conquiet.spark.source.ledger import Ledger, losses_key
from conquiet.spark.source.options import SourceOptions, checked_schema
from conquiet.spark.source.reader import BlockReader

if TYPE_CHECKING:
    from pyarrow import RecordBatch

__all__ = ["Blocks", "ConquietStreamReader"]

_SOCKET_SECONDS = 60.0  # long: a timeout would fail the whole query


@dataclass
class Blocks(InputPartition):
    """The blocks that one task reads."""

    blocks: list[Block]


class ConquietStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads one stream as one consumer of its group. It opens connections only when needed, because Spark copies it."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self.options = SourceOptions.parse(options)
        self._schema = checked_schema(schema)
        self._opened: Keeper | None = None
        self._bound = ""  # for availableNow: the last id to read

    def initialOffset(self) -> dict[str, Any]:
        return Offset().to_dict()

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self.options.max_entries_per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:
        self._bound = self._keeper().last_id()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        begun = Offset.from_dict(start)
        keeper = self._keeper()
        keeper.commit(begun.blocks)
        if isinstance(limit, ReadMaxRows):
            blocks = keeper.next_batch(limit.max_rows, self._bound)
        else:  # up to the current end: otherwise a busy producer would prolong this call
            assert isinstance(limit, ReadAllAvailable), limit
            blocks = keeper.next_batch(sys.maxsize, self._bound or keeper.last_id())
        lost = keeper.lost()
        if lost > begun.lost and self.options.fail_on_data_loss:
            raise DataLossError(
                f"stream {self.options.stream!r}: {lost - begun.lost} entries are gone, trimmed or deleted before "
                f"they were read; group {self.options.group!r} will not see them. Stop trimming unread entries; "
                "to continue without them, restart the query with option failOnDataLoss=false, which counts them"
            )
        if not blocks:
            keeper.settle()  # acknowledge now: there may be no further call
            return start
        return Offset(tuple(blocks), lost).to_dict()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        if start == end:
            return []
        blocks = Offset.from_dict(end).blocks
        keeper = self._keeper()
        keeper.commit(Offset.from_dict(start).blocks)  # after a restart this is the first call
        keeper.run(blocks)
        return [Blocks(run) for run in spread(blocks, self.options.partitions)]

    def commit(self, end: dict[str, Any]) -> None:
        self._keeper().commit(Offset.from_dict(end).blocks)

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        """Read from the stream alone, so that a repeated read gives the same rows. Called on an executor."""
        assert isinstance(partition, Blocks)
        options = self.options
        with BlockReader(options.url, options.stream, self._schema) as reader:
            for block in partition.blocks:
                batch = reader.read(block.lo, block.hi)
                if batch.num_rows < block.count:
                    self._tell_loss(reader, block, block.count - batch.num_rows)
                if batch.num_rows:
                    yield batch

    def stop(self) -> None:
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    def _tell_loss(self, reader: BlockReader, block: Block, lost: int) -> None:
        options = self.options
        if options.fail_on_data_loss:
            raise DataLossError(
                f"stream {options.stream!r}: {lost} of the {block.count} entries from {block.lo} to {block.hi} are "
                "gone, trimmed or deleted after they were claimed and before they were read. Stop trimming "
                "pending entries; to continue without them, restart the query with option failOnDataLoss=false, which "
                "counts them"
            )
        # Recorded by block, so that a task that runs twice does not count twice.
        reader.write_down(losses_key(options.stream, options.group, options.consumer), str(block), lost)

    def _keeper(self) -> Keeper:
        if self._opened is None:
            self._opened = Keeper(
                self._ledger(),
                block_entries=self.options.block_entries,
                ahead=self.options.max_entries_per_trigger,
                heartbeat=self.options.heartbeat,
            )
        return self._opened

    def _ledger(self) -> Ledger:
        redis = connect(self.options.url, socket_timeout=_SOCKET_SECONDS)
        return Ledger(redis, self.options.stream, self.options.group, self.options.consumer)
