"""The atomic steps of the ledger, as Redis scripts.

KEYS: 1 the stream, 2 the query's ledger, 3 facts about the query (a hash), 4 its losses, 5 the lease of the query, 6 the
lease of its consumer's name, 7 the ledger that the consumer's name was last used for.
ARGV begins with the caller's token, the group, the consumer and the duration of a lease in ms.

Facts: `token` of the last run that opened the ledger, `consumer` whose pending entries its blocks are, `first`: the blocks
of the first micro-batch, separated by spaces.

A lease says that a run is alive, and lapses when it is not. The token is what fences: a run whose token is not the
last one has been replaced, and the script does nothing for it.
"""

from __future__ import annotations

__all__ = ["CLAIM", "FIRST", "LOOK", "MOVED", "OPEN", "REFRESH", "RELEASE", "RENEW", "SETTLE", "TAKEN"]

TAKEN = "TAKEN"

_FORGOTTEN_SECONDS = 30 * 86_400  # after which nothing is left of a query that holds nothing and does not run

_RENEW = """
redis.call('SET', KEYS[5], ARGV[1], 'PX', ARGV[4])
redis.call('SET', KEYS[6], ARGV[1], 'PX', ARGV[4])
"""

_OWNED = (
    f"""
local holder = redis.call('GET', KEYS[6])
if redis.call('HGET', KEYS[3], 'token') ~= ARGV[1] or (holder and holder ~= ARGV[1]) then
  return redis.error_reply('{TAKEN} by another run')
end
"""
    + _RENEW
)

# Facts about a query expire only while it holds nothing.
_KEPT = f"""
if redis.call('LLEN', KEYS[2]) == 0 then
  redis.call('EXPIRE', KEYS[3], {_FORGOTTEN_SECONDS})
else
  redis.call('PERSIST', KEYS[3])
end
"""

# A group that is gone is made anew only for a query that has read nothing: it would deliver everything again. If the stream is
# gone, too, nothing is left to deliver again, except blocks.
_GROUP = """
local function with_group(held)
  local stream = redis.call('EXISTS', KEYS[1]) == 1
  local groups = stream and redis.call('XINFO', 'GROUPS', KEYS[1]) or {}
  for _, group in ipairs(groups) do if group[2] == ARGV[2] then return group end end
  if held > 0 then
    return redis.error_reply('NOGROUP the ledger ' .. KEYS[2] .. ' holds claimed blocks of a group that is gone')
  end
  if stream and redis.call('HEXISTS', KEYS[3], 'token') == 1 then
    return redis.error_reply('NOGROUP the group ' .. ARGV[2] .. ' is gone, and this query has read from it: a new one would '
      .. 'deliver everything again')
  end
  redis.call('XGROUP', 'CREATE', KEYS[1], ARGV[2], '0-0', 'MKSTREAM')
end
local function abandoned()  -- the ledger of this consumer under another checkpoint, if it has blocks and nobody runs it
  local ledger = redis.call('GET', KEYS[7])
  if ledger and ledger ~= KEYS[2] and redis.call('EXISTS', KEYS[3], ledger .. ':lease') == 0
    and redis.call('LLEN', ledger) > 0 then return ledger end
end
"""

_FREE = """
for i = 5, 6 do
  local holder = redis.call('GET', KEYS[i])
  if holder and holder ~= ARGV[1] then
    return {'held', i == 5 and 'checkpoint' or 'consumer', holder, redis.call('PTTL', KEYS[i])}
  end
end
"""

# Before a query has an identity: take its consumer's lease, and return the newest id if there is anything to read up to the
# id ARGV[5].
LOOK = (
    _FREE
    + _GROUP
    + """
local rest = abandoned()
local group = with_group(rest and 1 or 0)
if group and group.err then return group end
redis.call('SET', KEYS[6], ARGV[1], 'PX', ARGV[4])
local delivered = '0-0'
for i = 1, #(group or {}), 2 do if group[i] == 'last-delivered-id' then delivered = group[i + 1] end end
local new = redis.call('XRANGE', KEYS[1], '(' .. delivered, ARGV[5] ~= '' and ARGV[5] or '+', 'COUNT', 1)
if not rest and #new == 0 then return {'free', ''} end
local stream = redis.call('XINFO', 'STREAM', KEYS[1])
for i = 1, #stream, 2 do if stream[i] == 'last-generated-id' then return {'free', stream[i + 1]} end end
"""
)

# Become the owner, and return the ledger with the consumer that its entries are pending for. A new query takes over what
# its consumer's name holds under a checkpoint that is not in use: otherwise nobody would read it.
OPEN = (
    _FREE
    + _GROUP
    + """
local rest, former = abandoned(), false
if rest then
  redis.call('RENAME', rest, KEYS[2])
  former = redis.call('HGET', rest .. ':query', 'consumer')
  redis.call('DEL', rest .. ':query')
end
local group = with_group(redis.call('LLEN', KEYS[2]))
if group and group.err then return group end
former = redis.call('HGET', KEYS[3], 'consumer') or former or ARGV[3]
redis.call('HSET', KEYS[3], 'token', ARGV[1], 'consumer', former)
redis.call('SET', KEYS[7], KEYS[2])
"""
    + _RENEW
    + _KEPT
    + """
return {'open', former, redis.call('LRANGE', KEYS[2], 0, -1)}
"""
)

# All blocks belong to this consumer now.
MOVED = _OWNED + "redis.call('HSET', KEYS[3], 'consumer', ARGV[3])\nreturn 1"

RENEW = _OWNED + _KEPT + "return 1"

# End the leases, so that the next run need not wait for their end.
RELEASE = """
local released = 0
for i = 5, 6 do
  if redis.call('GET', KEYS[i]) == ARGV[1] then released = released + redis.call('DEL', KEYS[i]) end
end
return released
"""

# Record the blocks of the first micro-batch, once, and return what is recorded.
FIRST = (
    _OWNED + "redis.call('HSETNX', KEYS[3], 'first', ARGV[5])\nreturn redis.call('HGET', KEYS[3], 'first')"
)

# Deliver up to ARGV[5] new entries (none after the id ARGV[6], if given) and record the block, in one step: entries are
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
local delivered, count = value(group, 'last-delivered-id'), tonumber(ARGV[5])
if ARGV[6] ~= '' and after(value(stream, 'last-generated-id'), ARGV[6]) then
  if not after(ARGV[6], delivered) then return false end
  count = #redis.call('XRANGE', KEYS[1], '(' .. delivered, ARGV[6], 'COUNT', count)
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
redis.call('PERSIST', KEYS[3])
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
local pending = redis.call('XPENDING', KEYS[1], ARGV[2], ARGV[5], ARGV[6], ARGV[7])
local ids, acked = {}, 0
for i = 1, #pending do ids[i] = pending[i][1] end
for i = 1, #ids, 1000 do
  acked = acked + redis.call('XACK', KEYS[1], ARGV[2], unpack(ids, i, math.min(i + 999, #ids)))
end
redis.call('LREM', KEYS[2], 1, ARGV[5] .. ',' .. ARGV[6] .. ',' .. ARGV[7])
"""
    + _KEPT
    + "return acked"
)

# Reset the idle time of the entries of a block that are idle for ARGV[8] ms and belong to the
# consumer ARGV[9], and make them the caller's consumer's.
REFRESH = (
    _OWNED
    + """
local pending = redis.call('XPENDING', KEYS[1], ARGV[2], 'IDLE', ARGV[8], ARGV[5], ARGV[6], ARGV[7], ARGV[9])
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
