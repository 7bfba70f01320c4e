"""The journal of a sink: which batch is being published to a Redis stream, and its progress.

There is one hash for each query and stream. Every step is a script and therefore atomic: a chunk leaves its staging
list, its rows enter the stream and the journal advances, or nothing happens. A driver that restarts after a crash, and
an old driver that still runs beside its successor, both continue from the journal.

    batch    the newest batch whose publishing has begun
    at       the staging list that is being published, counted from 1; 0: all of the batch is published
    left     chunks left in it
    rows     rows published so far
    1, 2, …  "<chunks> <key>" of each staging list that is not published yet
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from conquiet.errors import QueueRefusedError, StagingLostError
from conquiet.flow import run
from conquiet.queue.wire import Exchange, pack, rows, text

__all__ = ["Journal"]


class Journal:
    def __init__(self, exchange: Exchange, key: str, stream: str, seconds: int) -> None:
        self._exchange = exchange
        self._key = key
        self._stream = stream
        self._seconds = seconds

    def begin(self, number: int, staging: Sequence[tuple[str, int]]) -> bool:
        """Record that batch `number` will be published from these lists (key, chunks).

        Return False if this batch or a later one is already recorded; the lists are then not needed. An earlier batch
        that is not finished is finished first.
        """
        while True:
            keys, counts = zip(*staging, strict=True)
            answer = self._call(_BEGIN, (*keys,), number, self._seconds, *counts)
            if answer == b"unfinished":
                self.finish()
            else:
                return bool(answer == b"begun")

    def finish(self) -> int:
        """Publish the rest of the recorded batch and return how many of its rows are published."""
        while True:
            batch, at, staging = self._call(_POSITION, parse=_three)
            if at == b"0":
                published: int = self._call(_ROWS, parse=int)
                return published
            while self.step(batch, at, staging):
                pass

    def step(self, batch: bytes, at: bytes, staging: bytes) -> bool:
        """Publish the next chunk of the list. Return False if it was the last, or if another driver published it."""
        return bool(self._call(_STEP, (self._stream, staging), batch, at, self._seconds))

    def discard(self, staging: Sequence[str], attempts: str) -> None:
        """Remove these lists and those of other attempts at the batch, except for recorded lists."""
        self._call(_DISCARD, (attempts, *staging))

    def _call(
        self,
        script: str,
        keys: Sequence[str | bytes] = (),
        *arguments: bytes | int,
        parse: Callable[[Any], Any] | None = None,
    ) -> Any:
        command = pack("EVAL", script, 1 + len(keys), self._key, *keys, *arguments)
        try:
            return run(self._exchange.exchange(f"the journal {self._key}", command, parse))
        except QueueRefusedError as error:
            if error.code == _LOST:
                raise StagingLostError(
                    f"{error}. They outlived stagingSeconds or journalSeconds, or Redis evicts or lost keys; rows "
                    "published before stay"
                ) from error
            raise


def _three(reply: Any) -> tuple[bytes, bytes, bytes]:
    batch, at, staging = (text(one).encode() for one in rows(reply))
    return batch, at, staging


_LOST = "STAGINGLOST"

_BEGIN = """
local batch, at = unpack(redis.call('HMGET', KEYS[1], 'batch', 'at'))
if batch and tonumber(batch) >= tonumber(ARGV[1]) then return 'known' end
if batch and at ~= '0' then return 'unfinished' end
for i = 2, #KEYS do
  if redis.call('LLEN', KEYS[i]) ~= tonumber(ARGV[i + 1]) then
    return redis.error_reply('STAGINGLOST rows that were staged are gone: ' .. KEYS[i])
  end
end
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], 'batch', ARGV[1], 'at', 1, 'left', ARGV[3], 'rows', 0)
for i = 2, #KEYS do
  redis.call('HSET', KEYS[1], i - 1, ARGV[i + 1] .. ' ' .. KEYS[i])
  redis.call('EXPIRE', KEYS[i], ARGV[2])
end
redis.call('EXPIRE', KEYS[1], ARGV[2])
return 'begun'
"""

_POSITION = """
local batch, at = unpack(redis.call('HMGET', KEYS[1], 'batch', 'at'))
if not batch then return redis.error_reply('STAGINGLOST the journal itself is gone') end
if at == '0' then return {batch, at, ''} end
return {batch, at, string.match(redis.call('HGET', KEYS[1], at), ' (.*)')}
"""

_ROWS = "return redis.call('HGET', KEYS[1], 'rows')"

_STEP = """
local batch, at, left = unpack(redis.call('HMGET', KEYS[1], 'batch', 'at', 'left'))
if batch ~= ARGV[1] or at ~= ARGV[2] then return 0 end
local chunk = redis.call('LINDEX', KEYS[3], 0)
if not chunk then return redis.error_reply('STAGINGLOST rows that were staged are gone: ' .. KEYS[3]) end
local rows = cmsgpack.unpack(chunk)
local call, stream = redis.call, KEYS[2]
for i = 1, #rows do call('XADD', stream, '*', 'data', rows[i]) end
call('LPOP', KEYS[3])
call('HINCRBY', KEYS[1], 'rows', #rows)
call('EXPIRE', KEYS[1], ARGV[3])
if tonumber(left) > 1 then
  call('HINCRBY', KEYS[1], 'left', -1)
  return 1
end
call('HDEL', KEYS[1], at)
local next = call('HGET', KEYS[1], tonumber(at) + 1)
if next then
  call('HSET', KEYS[1], 'at', tonumber(at) + 1, 'left', string.match(next, '%d+'))
else
  call('HSET', KEYS[1], 'at', 0, 'left', 0)
end
return 0
"""

_DISCARD = """
local recorded = {}
for _, value in ipairs(redis.call('HVALS', KEYS[1])) do
  local key = string.match(value, '^%d+ (.+)')
  if key then recorded[key] = true end
end
for i = 3, #KEYS do
  if not recorded[KEYS[i]] then redis.call('UNLINK', KEYS[i]) end
end
for _, key in ipairs(redis.call('SMEMBERS', KEYS[2])) do
  if not recorded[key] then redis.call('UNLINK', key) end
end
redis.call('DEL', KEYS[2])
return 1
"""
