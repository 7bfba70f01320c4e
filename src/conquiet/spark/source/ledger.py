"""The ledger of a source: the blocks that its consumer holds, stored in Redis next to the stream, in claim order.

Micro-batches take their blocks from the front, so everything up to the last block of a committed batch is
committed too; later blocks form the next batch, whether or not the driver recorded it in a checkpoint before it died.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import quote

from redis import Redis

from conquiet.errors import ConsumerTakenError, QueueRefusedError
from conquiet.flow import run
from conquiet.queue.wire import Exchange, as_mapping, pack, rows, text, whole
from conquiet.spark.source.blocks import Block
from conquiet.spark.source.ledger_scripts import CLAIM, OPEN, REFRESH, SETTLE, TAKEN

__all__ = ["Claim", "Ledger", "losses_key"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Claim:
    block: Block
    bytes: int
    lost: int
    """Entries before the block that were trimmed before any consumer of the group received them."""


class Ledger:
    """A query's ownership of its ledger. Opening it takes over from the previous owner, a driver presumed dead."""

    def __init__(self, redis: Redis, stream: str, group: str, consumer: str) -> None:
        self._exchange = Exchange(redis, awaits=False).exchange
        self._stream, self._group, self._consumer = stream, group, consumer
        self._token = secrets.token_hex(8)
        ledger = _ledger_key(stream, group, consumer)
        self._keys = (stream, ledger, f"{ledger}:owner", losses_key(stream, group, consumer))

    def open(self) -> list[Block]:
        """Create the group if necessary, become the owner, and return the held blocks, oldest first."""
        return [Block.parse(found) for found in self._eval("open", OPEN, parse=_texts)]

    def claim(self, count: int, bound: str = "") -> Claim | None:
        """Claim the next block of at most `count` entries, none after `bound`. Return None if there is nothing new."""
        return self._eval("claim", CLAIM, self._consumer, count, bound, parse=_claim)

    def settle(self, block: Block) -> int:
        """Acknowledge the block, remove it from the ledger, and return how many of its entries were still pending."""
        return self._eval("settle", SETTLE, block.lo, block.hi, block.count, parse=whole)

    def refresh(self, block: Block, min_idle_ms: int) -> int:
        """Reset the idle time of entries that have been idle for `min_idle_ms`, and return their number."""
        arguments = (self._consumer, block.lo, block.hi, block.count, min_idle_ms)
        return self._eval("refresh", REFRESH, *arguments, parse=whole)

    def lost(self) -> int:
        """Return the number of entries lost so far, over all runs of this source."""
        command = pack("HVALS", self._keys[3])
        return int(run(self._exchange(self._what("read the losses"), command, _sum)))

    def last_id(self) -> str:
        """Return the id of the newest entry that the stream has ever had."""
        command = pack("XINFO", "STREAM", self._stream)
        return str(run(self._exchange(self._what("look at the end"), command, _last_id)))

    def _eval(self, what: str, script: str, *arguments: str | int, parse: Callable[[Any], T]) -> T:
        command = pack("EVAL", script, len(self._keys), *self._keys, self._token, self._group, *arguments)
        try:
            parsed: T = run(self._exchange(self._what(what), command, parse))
            return parsed
        except QueueRefusedError as error:
            if error.code == TAKEN:
                raise ConsumerTakenError(
                    f"{self._what(what)}: another query has started to read as this consumer, so this one ends. If it "
                    "is not a restart of the same query, give each query its own `consumer`"
                ) from error.__cause__
            raise

    def _what(self, operation: str) -> str:
        return (
            f"{operation}, Spark source on stream {self._stream!r}, group {self._group!r}, "
            f"consumer {self._consumer!r}"
        )


def _texts(reply: Any) -> list[str]:
    return [text(one) for one in rows(reply)]


def _sum(reply: Any) -> int:
    return sum(map(int, _texts(reply)))


def _claim(reply: Any) -> Claim | None:
    if reply is None:
        return None
    lo, hi, entries, size, lost = rows(reply)
    return Claim(Block(text(lo), text(hi), whole(entries)), whole(size), whole(lost))


def _last_id(reply: Any) -> str:
    return text(as_mapping(reply)[b"last-generated-id"])


def losses_key(stream: str, group: str, consumer: str) -> str:
    """Return the key of a hash with the number of missing entries for every incomplete block."""
    return f"{_ledger_key(stream, group, consumer)}:lost"


def _ledger_key(stream: str, group: str, consumer: str) -> str:
    # The same cluster slot as the stream: its hash tag, or its whole name if it has no hash tag.
    tagged = stream if "{" in stream else f"{{{stream}}}"
    return f"{tagged}:conquiet-ledger:{quote(group, safe='')}:{quote(consumer, safe='')}"
