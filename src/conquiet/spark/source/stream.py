"""The streaming source: Spark as a competing consumer of a group.

Spark calls it on the driver, in a separate Python process (`latestOffset`, `partitions`, `commit`), and on executors
(`read`). It acknowledges in `latestOffset`, whose `start` is always durably committed: Spark calls `commit` one batch
late, and not at all for the last batch.

A query is known by its checkpoint. Spark does not tell a source which one it has, but returns the offsets in it, so the
offsets carry the query's identity. Nothing is claimed before the first of them is in the checkpoint.
"""

from __future__ import annotations

import os
import secrets
import signal
import sys
import threading
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
from conquiet.spark.source.blocks import Block, First, Offset, spread
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
    """The blocks that one task reads, and the identity of the query, under which it records losses."""

    blocks: list[Block]
    query: str


class ConquietStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads one stream as one consumer of its group. It opens connections only when needed, because Spark copies it."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self.options = SourceOptions.parse(options)
        self._schema = checked_schema(schema)
        self._opened: Keeper | None = None
        self._ledger: Ledger | None = None
        self._bound = ""  # for availableNow: the last id to read

    def initialOffset(self) -> dict[str, Any]:
        return Offset().to_dict()

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self.options.max_entries_per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:
        if self._opened is None and self._ledger is None:
            self._ledger_of(secrets.token_hex(16)).look()  # the stream exists now
        assert self._ledger is not None
        self._bound = self._ledger.last_id()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        begun = Offset.from_dict(start)
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else sys.maxsize
        if not self._query(begun):
            return self._first_offset(most) or start
        keeper = self._keeper(self._query(begun))
        self._commit(keeper, begun)
        bound = self._bound
        if not isinstance(
            limit, ReadMaxRows
        ):  # up to the current end: a busy producer would prolong this call
            assert isinstance(limit, ReadAllAvailable), limit
            bound = bound or keeper.last_id()
        blocks = keeper.next_batch(most, bound)
        lost = self._checked_losses(keeper, begun.lost)
        if not blocks:
            keeper.settle()  # acknowledge now: there may be no further call
            return start
        return Offset(tuple(blocks), lost, self._query(begun)).to_dict()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        if start == end:
            return []
        begun, ended = Offset.from_dict(start), Offset.from_dict(end)
        query = self._query(ended)
        keeper = self._keeper(query)
        self._commit(keeper, begun)  # after a restart this is the first call
        blocks: Sequence[Block] = ended.blocks
        if ended.first is not None:
            blocks = keeper.first_batch(ended.first.limit, ended.first.bound)
            self._checked_losses(keeper, ended.lost)
        keeper.run(blocks, self._bound)
        return [Blocks(run, query) for run in spread(blocks, self.options.partitions)]

    def commit(self, end: dict[str, Any]) -> None:
        ended = Offset.from_dict(end)
        self._commit(self._keeper(self._query(ended)), ended)

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        """Read from the stream alone, so that a repeated read gives the same rows. Called on an executor."""
        assert isinstance(partition, Blocks)
        options = self.options
        with BlockReader(options.url, options.stream, self._schema) as reader:
            for block in partition.blocks:
                batch = reader.read(block.lo, block.hi)
                if batch.num_rows < block.count:
                    self._tell_loss(reader, partition.query, block, block.count - batch.num_rows)
                if batch.num_rows:
                    yield batch

    def stop(self) -> None:
        if self._opened is not None:
            self._opened.close()
        elif self._ledger is not None:
            self._ledger.release()
        self._opened = self._ledger = None

    def _first_offset(self, limit: int) -> dict[str, Any] | None:
        """Give the query an identity if there is something to read. What the first batch has is claimed later."""
        ledger = self._ledger or self._ledger_of(secrets.token_hex(16))
        newest = ledger.look(self._bound)
        if not newest:
            return None
        return Offset(query=ledger.query, first=First(limit, self._bound or newest)).to_dict()

    def _query(self, offset: Offset) -> str:
        """Return the identity in the offset; "" before the first. Offsets without one are known by the consumer."""
        return offset.query or (self.options.consumer if offset.blocks else "")

    def _commit(self, keeper: Keeper, offset: Offset) -> None:
        if offset.first is not None:
            keeper.commit_first()
        else:
            keeper.commit(offset.blocks)

    def _checked_losses(self, keeper: Keeper, known: int) -> int:
        lost = keeper.lost()
        if lost > known and self.options.fail_on_data_loss:
            raise DataLossError(
                f"stream {self.options.stream!r}: {lost - known} entries are gone, trimmed or deleted before "
                f"they were read; group {self.options.group!r} will not see them. Stop trimming unread entries; "
                "to continue without them, restart the query with option failOnDataLoss=false, which counts them"
            )
        return lost

    def _tell_loss(self, reader: BlockReader, query: str, block: Block, lost: int) -> None:
        options = self.options
        if options.fail_on_data_loss:
            raise DataLossError(
                f"stream {options.stream!r}: {lost} of the {block.count} entries from {block.lo} to {block.hi} are "
                "gone, trimmed or deleted after they were claimed and before they were read. Stop trimming "
                "pending entries; to continue without them, restart the query with option failOnDataLoss=false, which "
                "counts them"
            )
        # Recorded by block, so that a task that runs twice does not count twice.
        reader.write_down(losses_key(options.stream, options.group, query), str(block), lost)

    def _keeper(self, query: str) -> Keeper:
        if self._opened is None:
            self._opened = Keeper(
                self._ledger_of(query),
                block_entries=self.options.block_entries,
                ahead=self.options.max_entries_per_trigger,
                heartbeat=self.options.heartbeat,
            )
        return self._opened

    def _ledger_of(self, query: str) -> Ledger:
        if self._ledger is None or self._ledger.query != query:
            if self._ledger is not None:
                self._ledger.release()
            _end_in_order()
            self._ledger = self.make_ledger(query)
        return self._ledger

    def make_ledger(self, query: str) -> Ledger:
        redis = connect(self.options.url, socket_timeout=_SOCKET_SECONDS)
        return Ledger(redis, self.options.stream, self.options.group, self.options.consumer, query)


def _end_in_order() -> None:
    """Spark ends this process by SIGTERM: call `stop` then, so that a restart does not have to wait for the lease."""
    if threading.current_thread() is threading.main_thread() and _is_sparks_process():
        signal.signal(signal.SIGTERM, _exit)


def _exit(number: int, frame: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # Spark sends it twice
    sys.exit(0)


def _is_sparks_process() -> bool:
    return "PYTHON_WORKER_FACTORY_PORT" in os.environ or "PYTHON_WORKER_FACTORY_SOCK_PATH" in os.environ
