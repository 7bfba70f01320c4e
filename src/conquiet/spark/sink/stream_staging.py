"""Staging for the Redis stream sink: packs JSON texts from Arrow columns into chunks and pushes them to a list.

A chunk is one element of the list and later one publishing step. It holds many texts and is built from Arrow's
buffers, because packing row by row would take longer than everything else.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from conquiet.errors import StagingLostError
from conquiet.flow import run
from conquiet.queue.wire import Exchange, pack, whole

__all__ = ["CHUNK_BYTES", "CHUNK_ROWS", "StagingList", "chunks"]

# A chunk is one atomic step, which blocks the server for about 4 ms.
CHUNK_ROWS = 2_000
CHUNK_BYTES = 1024 * 1024

# Returns the length of the list, from which the caller detects that earlier chunks are gone.
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
    """The list of one task attempt. It expires, because nothing else cleans up after a killed attempt."""

    def __init__(self, exchange: Exchange, key: str, attempts_key: str, seconds: int) -> None:
        self._exchange = exchange
        self._keys = (key, attempts_key)
        self._seconds = seconds
        self.chunks = 0

    def push(self, chunk: bytes) -> None:
        command = pack("EVAL", _PUSH, 2, *self._keys, chunk, self._seconds)
        length = run(self._exchange.exchange("stage rows", command, whole))
        self.chunks += 1
        if length != self.chunks:
            raise StagingLostError(
                f"the staged rows of this task are gone (the list has {length} chunks, not {self.chunks}): the task "
                "took longer than stagingSeconds, or Redis evicts or lost keys. Nothing was published"
            )


def chunks(texts: pa.Array) -> Iterator[tuple[int, bytes]]:
    """Yield (rows, packed) for each chunk of a column of texts."""
    waiting = [texts[begin : begin + CHUNK_ROWS] for begin in reversed(range(0, len(texts), CHUNK_ROWS))]
    while waiting:
        piece = waiting.pop()
        packed = _packed(piece)
        if len(packed) > CHUNK_BYTES and len(piece) > 1:
            half = len(piece) // 2
            waiting += (piece[half:], piece[:half])
        else:
            yield len(piece), packed


def _packed(texts: pa.Array) -> bytes:
    """Encode an array of strings in MessagePack with 4-byte lengths. Redis scripts have an unpacker in C."""
    binary = texts.cast(pa.large_binary())
    heads = np.empty((len(binary), 5), np.uint8)
    heads[:, 0] = _STRING
    heads[:, 1:] = np.diff(_ends(binary)).astype(">u4").view(np.uint8).reshape(-1, 4)
    heads = pa.Array.from_buffers(pa.binary(5), len(binary), [None, pa.py_buffer(heads)])
    joined = pc.binary_join_element_wise(heads.cast(pa.large_binary()), binary, _NOTHING)
    return struct.pack(">BI", _ARRAY, len(binary)) + _content(joined)


def _content(column: pa.Array) -> bytes:
    """Return the concatenated values of a binary column, straight from its buffer."""
    data, ends = column.buffers()[2], _ends(column)
    return b"" if data is None else data[int(ends[0]) : int(ends[-1])].to_pybytes()


def _ends(column: pa.Array) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the offsets of the values, one more than there are values."""
    return np.frombuffer(column.buffers()[1], np.int64)[column.offset : column.offset + len(column) + 1]


_STRING, _ARRAY = 0xDB, 0xDD
# Made from buffers: converting a Python value to Arrow imports pandas, which takes a quarter of a second.
_NOTHING = pa.Array.from_buffers(pa.large_binary(), 1, [None, pa.py_buffer(bytes(16)), pa.py_buffer(b"")])[0]
