"""The ledger of a source: which blocks its consumer holds, kept in Redis beside the stream, in the order of claim.

Micro-batches take their blocks from its front, so everything up to the last block of a committed batch is
committed too; what comes behind is the next batch, whether a checkpoint knows of it or the driver died before.
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
    """Entries in front of the block that were trimmed before anybody in the group got them."""


class Ledger:
    """One query's hold on its ledger. Opening a new one takes it from whoever had it: a driver presumed dead."""

    def __init__(self, redis: Redis, stream: str, group: str, consumer: str) -> None:
        self._exchange = Exchange(redis, awaits=False).exchange
        self._stream, self._group, self._consumer = stream, group, consumer
        self._token = secrets.token_hex(8)
        ledger = _ledger_key(stream, group, consumer)
        self._keys = (stream, ledger, f"{ledger}:owner", losses_key(stream, group, consumer))

    def open(self) -> list[Block]:
        """Create the group if need be, become the owner; the blocks held, oldest first."""
        return [Block.parse(found) for found in self._eval("open", OPEN, parse=_texts)]

    def claim(self, count: int, bound: str = "") -> Claim | None:
        """The next block of at most `count` entries, none of them after `bound`; None if there is nothing new."""
        return self._eval("claim", CLAIM, self._consumer, count, bound, parse=_claim)

    def settle(self, block: Block) -> int:
        """Acknowledge the block and strike it out; how many of its entries were still pending."""
        return self._eval("settle", SETTLE, block.lo, block.hi, block.count, parse=whole)

    def refresh(self, block: Block, min_idle_ms: int) -> int:
        """Reset the idle time of what is idle for that long; how many entries that was."""
        arguments = (self._consumer, block.lo, block.hi, block.count, min_idle_ms)
        return self._eval("refresh", REFRESH, *arguments, parse=whole)

    def lost(self) -> int:
        """Entries lost so far, by all runs of this source."""
        command = pack("HVALS", self._keys[3])
        return int(run(self._exchange(self._what("read the losses"), command, _sum)))

    def last_id(self) -> str:
        """The id of the newest entry that the stream has ever had."""
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
                    f"{self._what(what)}: another query has begun to read as this consumer, so this one ends. If it "
                    "is not a restart of the same query, give each query a `consumer` of its own"
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
    """A hash: for every block that came out short, how many entries it lacked."""
    return f"{_ledger_key(stream, group, consumer)}:lost"


def _ledger_key(stream: str, group: str, consumer: str) -> str:
    # Beside the stream also in a cluster: the same hash tag, the whole name if it has none of its own.
    tagged = stream if "{" in stream else f"{{{stream}}}"
    return f"{tagged}:conquiet-ledger:{quote(group, safe='')}:{quote(consumer, safe='')}"
