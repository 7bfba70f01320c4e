"""Rows on their way to a Redis stream: JSON texts in Arrow columns, packed into chunks, pushed to a list.

A chunk is one element of the list and, later, one step of publishing: many texts in one string, which is made from
Arrow's own buffers. Packing row by row, or command by command, takes longer than all else.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from conquiet.errors import QueueError
from conquiet.flow import run
from conquiet.queue.exchange import Exchange
from conquiet.queue.wire import pack

__all__ = ["CHUNK_BYTES", "CHUNK_ROWS", "StagingList", "chunks"]

# One chunk is one atomic step of the server, in which it does nothing else: some 4 ms.
CHUNK_ROWS = 2_000
CHUNK_BYTES = 1024 * 1024

# Appends, and says how long the list is now: the caller then knows whether it was there as it left it.
_PUSH = """
local length = redis.call('RPUSH', KEYS[1], ARGV[1])
redis.call('EXPIRE', KEYS[1], ARGV[2])
if length == 1 then
  redis.call('SADD', KEYS[2], KEYS[1])
  redis.call('EXPIRE', KEYS[2], ARGV[2])
end
return length
"""


class StagingList:
    """The list of one task attempt. It expires: nobody comes back for what a killed attempt has left."""

    def __init__(self, exchange: Exchange, key: str, attempts_key: str, seconds: int) -> None:
        self._exchange = exchange
        self._keys = (key, attempts_key)
        self._seconds = seconds
        self.chunks = 0

    def push(self, chunk: bytes) -> None:
        command = pack("EVAL", _PUSH, 2, *self._keys, chunk, self._seconds)
        length = run(self._exchange.exchange("stage rows", command))
        self.chunks += 1
        if length != self.chunks:
            raise QueueError(
                f"the staged rows of this task are gone (the list has {length} chunks and not {self.chunks}): it "
                "took longer than stagingSeconds, or Redis evicts or lost keys. Nothing was published"
            )


def chunks(texts: pa.Array) -> Iterator[tuple[int, bytes]]:
    """(rows, packed) for pieces of a column of texts."""
    waiting = [
        texts[start : start + CHUNK_ROWS]
        for start in range(len(texts) - 1, -1, -1)
        if start % CHUNK_ROWS == 0
    ]
    while waiting:
        piece = waiting.pop()
        packed = _packed(piece)
        if len(packed) > CHUNK_BYTES and len(piece) > 1:
            half = len(piece) // 2
            waiting += (piece[half:], piece[:half])
        else:
            yield len(piece), packed


def _packed(texts: pa.Array) -> bytes:
    """An array of strings in MessagePack, each with a length of four bytes; Redis has an unpacker in C for its scripts."""
    lengths = pc.binary_length(texts).to_numpy().astype(">u4")
    heads = np.empty((len(lengths), 5), np.uint8)
    heads[:, 0] = _STRING
    heads[:, 1:] = lengths.view(np.uint8).reshape(-1, 4)
    heads = pa.FixedSizeBinaryArray.from_buffers(pa.binary(5), len(lengths), [None, pa.py_buffer(heads)])
    joined = pc.binary_join_element_wise(
        heads.cast(pa.large_binary()), texts.cast(pa.large_binary()), _NOTHING
    )
    return struct.pack(">BI", _ARRAY, len(lengths)) + _content(joined)


def _content(column: pa.Array) -> bytes:
    """All values of a binary column, one after the other, as they stand in its buffer."""
    _, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, np.int64)[column.offset : column.offset + len(column) + 1]
    return b"" if data is None else data[int(ends[0]) : int(ends[-1])].to_pybytes()


_STRING, _ARRAY = 0xDB, 0xDD
_NOTHING = pa.scalar(b"", pa.large_binary())
