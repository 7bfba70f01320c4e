"""Blocks of a stream, and offsets that consist of blocks.

A block is the result of one claim: every entry from `lo` to `hi`. Entry ids only increase and a claim is atomic, so no
other entry can appear in that range, and the block can be read again from the stream alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from conquiet.errors import QueueConfigError

__all__ = ["Block", "First", "Offset", "entries_in", "spread", "take"]


@dataclass(frozen=True, slots=True)
class Block:
    lo: str
    hi: str
    count: int

    @classmethod
    def parse(cls, text: str) -> Block:
        try:
            lo, hi, count = text.split(",")
            return cls(lo, hi, int(count))
        except ValueError:
            raise QueueConfigError(
                f"{text!r} is not a block of a conquiet source (lo,hi,count): "
                "was this checkpoint written by another source?"
            ) from None

    def __str__(self) -> str:
        return f"{self.lo},{self.hi},{self.count}"


@dataclass(frozen=True, slots=True)
class First:
    """What the first micro-batch of a query may claim: at most `limit` entries, none after the id `bound`."""

    limit: int
    bound: str


@dataclass(frozen=True, slots=True)
class Offset:
    """The end of a micro-batch: its blocks, from which it can be read again, and the number of entries lost so far.

    `query` identifies the query, and with it its ledger, wherever the checkpoint goes. Spark tells a source nothing about
    its checkpoint, so the first offset carries a new identity and has claimed nothing (`first`): its blocks are claimed
    when the checkpoint has it, and are found in the ledger.
    """

    blocks: tuple[Block, ...] = ()
    lost: int = 0
    query: str = ""
    first: First | None = None

    @classmethod
    def from_dict(cls, offset: Mapping[str, Any]) -> Offset:
        first = offset.get("first")
        return cls(
            tuple(map(Block.parse, offset["blocks"])),
            int(offset["lost"]),
            str(offset.get("query", "")),
            None if first is None else First(int(first["limit"]), str(first["bound"])),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON for the checkpoint, about 45 bytes per block."""
        offset: dict[str, Any] = {"blocks": list(map(str, self.blocks)), "lost": self.lost}
        if self.query:
            offset["query"] = self.query
        if self.first is not None:
            offset["first"] = asdict(self.first)
        return offset

    @property
    def newest(self) -> str:
        """The newest id that the batch can have."""
        return self.blocks[-1].hi if self.blocks else self.first.bound if self.first else "0-0"


def entries_in(blocks: Iterable[Block]) -> int:
    return sum(block.count for block in blocks)


def take(blocks: Sequence[Block], limit: int) -> list[Block]:
    """Return the first blocks with at most `limit` entries in total, but at least one block if there is one."""
    taken: list[Block] = []
    total = 0
    for block in blocks:
        total += block.count
        if taken and total > limit:
            break
        taken.append(block)
    return taken


def spread(blocks: Sequence[Block], partitions: int) -> list[list[Block]]:
    """Split into at most `partitions` runs of neighbours with about the same number of entries; none is empty."""
    total = entries_in(blocks)
    runs: list[list[Block]] = []
    before, current = 0, -1
    for block in blocks:
        # A block belongs to the run whose share of the entries contains its middle.
        share = int((before + block.count / 2) * partitions / max(total, 1))
        if share > current:
            runs.append([])
            current = share
        runs[-1].append(block)
        before += block.count
    return runs
