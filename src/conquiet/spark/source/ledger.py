"""The ledger of a query: the blocks that it holds, stored in Redis next to the stream, in claim order.

Micro-batches take their blocks from the front, so everything up to the last block of a committed batch is
committed too; later blocks form the next batch, whether or not the driver recorded it in a checkpoint before it died.

The ledger belongs to the query's identity, which is in its checkpoint, and not to the name of its consumer: under another
name the query finds its own blocks.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import quote

from redis import Redis

from conquiet.errors import ConsumerTakenError, GroupLostError, QueueRefusedError
from conquiet.flow import run
from conquiet.queue.wire import Exchange, as_mapping, pack, rows, tagged, text, whole
from conquiet.spark.source.blocks import Block, entries_in
from conquiet.spark.source.ledger_scripts import (
    CLAIM,
    FIRST,
    LOOK,
    MOVED,
    OPEN,
    REFRESH,
    RELEASE,
    RENEW,
    SETTLE,
    TAKEN,
)

__all__ = ["LEASE_SECONDS", "Claim", "Ledger", "losses_key"]

T = TypeVar("T")

_log = logging.getLogger("conquiet.spark")

# How long a crashed run keeps its successor waiting. It is renewed three times as often.
LEASE_SECONDS = 10.0
_LOOK_SECONDS = 0.25  # between two looks at a lease that somebody else holds


@dataclass(frozen=True, slots=True)
class Claim:
    block: Block
    bytes: int
    lost: int
    """Entries before the block that were trimmed before any consumer of the group received them."""


class Ledger:
    """One run's ownership of its query's ledger. Opening it fences off the previous owner, whose lease has lapsed."""

    def __init__(
        self,
        redis: Redis,
        stream: str,
        group: str,
        consumer: str,
        query: str,
        *,
        lease_seconds: float = LEASE_SECONDS,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._exchange = Exchange(redis, awaits=False, key=stream).exchange
        self._stream, self._group, self._consumer = stream, group, consumer
        self.query = query
        self.lease_seconds = lease_seconds
        self._sleep = sleep
        # The beginning is for people: it is shown to a query that is refused.
        self._token = f"{socket.gethostname()}, process {os.getpid()}, {secrets.token_hex(8)}"
        ledger, name = _ledger_key(stream, group, query), _consumer_key(stream, group, consumer)
        self._keys = (
            stream,
            ledger,
            f"{ledger}:query",
            losses_key(stream, group, query),
            f"{ledger}:lease",
            f"{name}:lease",
            name,
        )

    def look(self, bound: str = "") -> str:
        """Create the group if necessary, and return the stream's newest id if there is anything to read, otherwise "".

        For a query that has no identity yet, and therefore must not claim anything. Takes the consumer's lease.
        """
        return text(self._when_free("look", LOOK, bound)[0])

    def open(self) -> list[Block]:
        """Create the group if necessary, become the owner, and return the held blocks, oldest first."""
        former, found = self._when_free("open", OPEN)
        blocks = [Block.parse(one) for one in _texts(found)]
        if text(former) != self._consumer:
            self._adopt(text(former), blocks)
        return blocks

    def claim(self, count: int, bound: str = "") -> Claim | None:
        """Claim the next block of at most `count` entries, none after `bound`. Return None if there is nothing new."""
        return self._eval("claim", CLAIM, count, bound, parse=_claim)

    def record_first(self, blocks: Sequence[Block]) -> tuple[Block, ...]:
        """Record the blocks of the first micro-batch unless that has been done; return the recorded ones."""
        return self._eval("record the first batch", FIRST, " ".join(map(str, blocks)), parse=_blocks)

    def first(self) -> tuple[Block, ...] | None:
        """Return the blocks of the first micro-batch, or None if they are not recorded."""
        command = pack("HGET", self._keys[2], "first")
        what = self._what("look for the first batch")
        found: tuple[Block, ...] | None = run(self._exchange(what, command, _maybe_blocks))
        return found

    def settle(self, block: Block) -> int:
        """Acknowledge the block, remove it from the ledger, and return how many of its entries were still pending."""
        return self._eval("settle", SETTLE, block.lo, block.hi, block.count, parse=whole)

    def refresh(self, block: Block, min_idle_ms: int, holder: str | None = None) -> int:
        """Reset the idle time of entries that have been idle for `min_idle_ms`, and return their number.

        They belong to this consumer, or to `holder`, and then become this consumer's.
        """
        arguments = (block.lo, block.hi, block.count, min_idle_ms, holder or self._consumer)
        return self._eval("refresh", REFRESH, *arguments, parse=whole)

    def renew(self) -> None:
        """Renew the lease, as every other step does, too."""
        self._eval("renew the lease", RENEW, parse=whole)

    def release(self) -> None:
        """End the lease: the next run may open the ledger at once."""
        self._eval("release", RELEASE, parse=whole)

    def lost(self) -> int:
        """Return the number of entries lost so far, over all runs of this source."""
        command = pack("HVALS", self._keys[3])
        return int(run(self._exchange(self._what("read the losses"), command, _sum)))

    def last_id(self) -> str:
        """Return the id of the newest entry that the stream has ever had."""
        command = pack("XINFO", "STREAM", self._stream)
        return str(run(self._exchange(self._what("look at the end"), command, _last_id)))

    def _adopt(self, former: str, blocks: list[Block]) -> None:
        """Make the entries of a former name this consumer's. Recorded last: if it dies on the way, it begins again."""
        moved = sum(self.refresh(block, 0, former) for block in blocks)
        self._eval("adopt", MOVED, parse=whole)
        _log.warning(
            "stream %r, group %r: this query used to read as consumer %r and now reads as %r; it has adopted "
            "%d entries in %d blocks, %d of them pending for its former name",
            *(self._stream, self._group, former, self._consumer, entries_in(blocks), len(blocks), moved),
        )

    def _when_free(self, what: str, script: str, *arguments: str | int) -> list[Any]:
        """Run the script as soon as nobody else has the lease. Refuse if its holder renews it, and so is alive."""
        seen, before = "", 0
        while True:
            answer, *values = self._eval(what, script, *arguments, parse=rows)
            if text(answer) != "held":
                return values
            of, holder, left = text(values[0]), text(values[1]), whole(values[2])
            if holder == seen and left > before:
                raise ConsumerTakenError(f"{self._what(what)}: {_REFUSED[of].format(holder)}")
            if not seen:
                _log.warning(
                    "%s: waiting at most %.0f s, until the lease of a run that did not end properly has lapsed (%s)",
                    *(self._what(what), left / 1000, holder),
                )
            seen, before = holder, left
            self._sleep(min(_LOOK_SECONDS, max(left, 1) / 1000))

    def _eval(self, what: str, script: str, *arguments: str | int, parse: Callable[[Any], T]) -> T:
        lease_ms = int(self.lease_seconds * 1000)
        fixed = (self._token, self._group, self._consumer, lease_ms)
        command = pack("EVAL", script, len(self._keys), *self._keys, *fixed, *arguments)
        try:
            parsed: T = run(self._exchange(self._what(what), command, parse))
            return parsed
        except GroupLostError as error:
            raise GroupLostError(
                f"{self._what(what)}: the consumer group is gone ({error.__cause__}). Find out what removed it. To go on, create it "
                f"behind the last entry that this query has delivered (XGROUP CREATE {self._stream} {self._group} ID; "
                "0 delivers everything again), or start the query with a new checkpoint and another group"
            ) from error.__cause__
        except QueueRefusedError as error:
            if error.code == TAKEN:
                raise ConsumerTakenError(
                    f"{self._what(what)}: this run did not renew its lease in time, and another query has started to read "
                    "as this consumer or from this checkpoint, so this one ends. If it is not a restart of the same "
                    "query, give each query its own `consumer` and checkpoint"
                ) from error.__cause__
            raise

    def _what(self, operation: str) -> str:
        return (
            f"{operation}, Spark source on stream {self._stream!r}, group {self._group!r}, "
            f"consumer {self._consumer!r}"
        )


_REFUSED = {
    "consumer": "a running query reads as this consumer ({}), so this one was refused and has read nothing. Stop "
    "the other one first, or give each query its own `consumer`",
    "checkpoint": "a running query uses this checkpoint ({}), so this one was refused and has read nothing. Stop "
    "the other one first, or give each query its own checkpointLocation",
}


def _blocks(reply: Any) -> tuple[Block, ...]:
    return tuple(map(Block.parse, text(reply).split()))


def _maybe_blocks(reply: Any) -> tuple[Block, ...] | None:
    return None if reply is None else _blocks(reply)


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


def losses_key(stream: str, group: str, query: str) -> str:
    """Return the key of a hash with the number of missing entries for every incomplete block."""
    return f"{_ledger_key(stream, group, query)}:lost"


def _ledger_key(stream: str, group: str, query: str) -> str:
    return f"{tagged(stream)}:conquiet-ledger:{quote(group, safe='')}:{quote(query, safe='')}"


def _consumer_key(stream: str, group: str, consumer: str) -> str:
    return f"{tagged(stream)}:conquiet-consumer:{quote(group, safe='')}:{quote(consumer, safe='')}"
