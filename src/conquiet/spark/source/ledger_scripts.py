"""The atomic steps of the ledger, as Redis scripts.

KEYS: the stream, its ledger, the ledger's owner, its losses. ARGV begins with the caller's token and the group.
A caller whose token is not the owner's is a query that has been replaced: the script does nothing for it.
"""

from __future__ import annotations

__all__ = ["CLAIM", "OPEN", "REFRESH", "SETTLE", "TAKEN"]

TAKEN = "TAKEN"

_OWNED = (
    f"if redis.call('GET', KEYS[3]) ~= ARGV[1] then return redis.error_reply('{TAKEN} by another run') end\n"
)

# Become the owner and return the ledger. A new group would deliver everything again, including the ledger's blocks.
OPEN = """
local groups = redis.call('EXISTS', KEYS[1]) == 1 and redis.call('XINFO', 'GROUPS', KEYS[1]) or {}
local known = false
for _, group in ipairs(groups) do known = known or group[2] == ARGV[2] end
if not known then
  if redis.call('LLEN', KEYS[2]) > 0 then
    return redis.error_reply('NOGROUP the ledger ' .. KEYS[2] .. ' holds claimed blocks of a group that is gone')
  end
  redis.call('XGROUP', 'CREATE', KEYS[1], ARGV[2], '0-0', 'MKSTREAM')
end
redis.call('SET', KEYS[3], ARGV[1])
return redis.call('LRANGE', KEYS[2], 0, -1)
"""

# Deliver up to ARGV[4] new entries (none after the id ARGV[5], if given) and record the block, in one step: entries are
# never pending without being in the ledger. Entries were trimmed before delivery if the group expects more than the
# stream still has; SETID then corrects the group's own count (Redis 7.0 leaves it wrong), so that no loss is
# reported twice.
CLAIM = (
    _OWNED
    + """
local function value(reply, name)
  for i = 1, #reply, 2 do if reply[i] == name then return reply[i + 1] end end
end
local function above(one, other)  -- compares strings: a Lua number cannot hold all digits of an id
  if #one ~= #other then return #one > #other end
  return one > other
end
local function after(one, other)
  local ms, seq = one:match('(%d+)-(%d+)')
  local other_ms, other_seq = other:match('(%d+)-(%d+)')
  return above(ms, other_ms) or (ms == other_ms and above(seq, other_seq))
end
if redis.call('EXISTS', KEYS[1]) == 0 then return redis.error_reply('NOGROUP No such key ' .. KEYS[1]) end
local stream, group = redis.call('XINFO', 'STREAM', KEYS[1]), nil
for _, one in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do if value(one, 'name') == ARGV[2] then group = one end end
if not group then return redis.error_reply('NOGROUP No such consumer group ' .. ARGV[2]) end
local delivered, count = value(group, 'last-delivered-id'), tonumber(ARGV[4])
if ARGV[5] ~= '' and after(value(stream, 'last-generated-id'), ARGV[5]) then
  if not after(ARGV[5], delivered) then return false end
  count = #redis.call('XRANGE', KEYS[1], '(' .. delivered, ARGV[5], 'COUNT', count)
  if count == 0 then return false end
end
local reply = redis.call('XREADGROUP', 'GROUP', ARGV[2], ARGV[3], 'COUNT', count, 'STREAMS', KEYS[1], '>')
if not reply then return false end
local entries = reply[1][2]
local n, bytes = #entries, 0
for i = 1, n do
  local fields = entries[i][2]
  for j = 1, #fields do bytes = bytes + #fields[j] end
end
local lo, hi = entries[1][1], entries[n][1]
redis.call('RPUSH', KEYS[2], lo .. ',' .. hi .. ',' .. n)
local read, added, length = value(group, 'entries-read'), value(stream, 'entries-added'), value(stream, 'length')
local first, deleted = value(stream, 'recorded-first-entry-id'), value(stream, 'max-deleted-entry-id')
local lost = 0
if read and after(first, delivered) and not after(deleted, delivered) then
  lost = math.max(0, added - read - length)
  if lost > 0 then
    redis.call('HINCRBY', KEYS[4], 'before ' .. lo, lost)
    redis.call('XGROUP', 'SETID', KEYS[1], ARGV[2], hi, 'ENTRIESREAD', added - length + n)
  end
end
return {lo, hi, n, bytes, lost}
"""
)

# Acknowledge the pending entries of a block, whichever consumer holds them now (their effect is committed), and remove
# the block from the ledger.
SETTLE = (
    _OWNED
    + """
local pending = redis.call('XPENDING', KEYS[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5])
local ids, acked = {}, 0
for i = 1, #pending do ids[i] = pending[i][1] end
for i = 1, #ids, 1000 do
  acked = acked + redis.call('XACK', KEYS[1], ARGV[2], unpack(ids, i, math.min(i + 999, #ids)))
end
redis.call('LREM', KEYS[2], 1, ARGV[3] .. ',' .. ARGV[4] .. ',' .. ARGV[5])
return acked
"""
)

# Reset the idle time of the entries of a block that are idle for ARGV[7] ms and still belong to the consumer.
REFRESH = (
    _OWNED
    + """
local pending = redis.call('XPENDING', KEYS[1], ARGV[2], 'IDLE', ARGV[7], ARGV[4], ARGV[5], ARGV[6], ARGV[3])
local ids = {}
for i = 1, #pending do ids[i] = pending[i][1] end
for i = 1, #ids, 1000 do
  local last = math.min(i + 999, #ids)
  local claim = {'XCLAIM', KEYS[1], ARGV[2], ARGV[3], 0}
  for j = i, last do claim[#claim + 1] = ids[j] end
  claim[#claim + 1] = 'JUSTID'
  redis.call(unpack(claim))
end
return #ids
"""
)
