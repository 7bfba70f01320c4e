"""What must be one step on the server, in Lua. Each script touches one key, so that it also runs in a cluster."""

from __future__ import annotations

from typing import Final

__all__ = ["ACK_IF_OWNER", "ENQUEUE_MANY", "GONE", "HAS_NEW", "LAST_ID_PART"]

LAST_ID_PART: Final = 2**64 - 1  # the largest number before and after the hyphen of an id

# All or nothing: a stream whose last id is nearly the largest one has room for a few more entries only. ARGV[1] is the
# largest second part that leaves room for all. Everything else that Redis refuses, it refuses at the first XADD.
# The ids are returned as one string, which is parsed ten times as fast as a reply of a thousand parts.
ENQUEUE_MANY: Final = (
    "local info, ids = redis.pcall('XINFO', 'STREAM', KEYS[1]), {} "
    "for i = 1, #info, 2 do if info[i] == 'last-generated-id' then "
    "local ms, seq = string.match(info[i + 1], '^(%d+)-(%d+)$') "
    f"if ms == '{LAST_ID_PART}' and #seq == #ARGV[1] and seq > ARGV[1] then "
    "return redis.error_reply('ERR The stream has exhausted its ids: after ' .. info[i + 1] .. "
    "' there is no room for ' .. (#ARGV - 1) .. ' more. Nothing was added') end "
    "end end "
    "for i = 2, #ARGV do ids[i - 1] = redis.call('XADD', KEYS[1], '*', 'data', ARGV[i]) end "
    "return table.concat(ids, ' ')"
)

# Checks the holder and acknowledges in one step, so that no consumer can claim the entry in between.
ACK_IF_OWNER: Final = (
    "local held = redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[3], ARGV[3], 1)[1] "
    "if not held then return {0} end "
    "if held[2] ~= ARGV[2] then return {0, held[2]} end "
    "return {redis.call('XACK', KEYS[1], ARGV[1], ARGV[3])}"
)

# Which of these ids are no longer in the stream: one command for all, and no payload is sent.
GONE: Final = (
    "local gone = {} "
    "for _, id in ipairs(ARGV) do "
    "if #redis.call('XRANGE', KEYS[1], id, id, 'COUNT', 1) == 0 then gone[#gone + 1] = id end end "
    "return gone"
)

# Whether the stream has an entry after the last one that was delivered to the group. The lag of XINFO is not always
# known, and the last generated id may belong to an entry that was deleted since.
HAS_NEW: Final = (
    "local groups = redis.pcall('XINFO', 'GROUPS', KEYS[1]) "
    "if groups.err and not string.find(groups.err, 'no such key', 1, true) then return groups end "
    "for _, group in ipairs(groups) do "
    "local found = {} "
    "for i = 1, #group, 2 do found[group[i]] = group[i + 1] end "
    "if found['name'] == ARGV[1] then "
    "local last = found['last-delivered-id'] "
    f"if last == '{LAST_ID_PART}-{LAST_ID_PART}' then return 0 end "
    "return #redis.call('XRANGE', KEYS[1], '(' .. last, '+', 'COUNT', 1) end end "
    "return redis.error_reply('NOGROUP No such key or consumer group')"
)
