-- One step of the pace of a platform, the same as in local/pace.py. The key is a hash; if it is missing, nothing is slowed.
-- ARGV: now (µs; '' for the server's), call, first, longest, longest wait, what the platform asked for (µs)
local now, is_given = tonumber(ARGV[1]), ARGV[1] ~= ''
if not now then
    local time = redis.call('TIME')
    now = time[1] * 1000000 + time[2]
end
local call, first, longest = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local longest_wait, retry_after = tonumber(ARGV[5]), tonumber(ARGV[6])

local held = redis.pcall('HMGET', KEYS[1], 'spacing', 'not_before', 'next_at', 'booked', 'forget_at')
if held.err then -- not written by this script: as if it were missing, or no other key could be used
    redis.call('DEL', KEYS[1])
    held = {}
end
local spacing, not_before, next_at = tonumber(held[1] or 0) or 0, tonumber(held[2] or 0) or 0, tonumber(held[3] or 0) or 0
local booked, forget_at = tonumber(held[4] or 0) or 0, tonumber(held[5] or 0) or 0
-- Forgotten; or later than possible: the clock was set back.
if now >= forget_at or not_before > now + longest_wait then spacing = 0 end

local before, wait, changed = spacing, 0, false
if call == 'asked' then
    if spacing == 0 then
        spacing, not_before = first, now
    elseif now >= not_before then
        spacing, not_before = math.min(2 * spacing, longest), now
    end
    not_before = math.max(not_before, now + math.max(spacing, math.min(retry_after, longest_wait)))
    next_at, booked, forget_at, wait, changed = not_before, not_before, not_before + longest_wait, not_before - now, true
elseif call == 'wait' and spacing > 0 then
    if now >= next_at then
        next_at = now + spacing
        booked, forget_at, changed = math.max(booked, next_at), now + longest_wait, true
    else
        local at = math.min(booked, now + longest_wait)
        booked, wait, changed = at + spacing, at - now, true
    end
elseif call == 'answered' and spacing > 0 and now >= not_before then
    spacing, changed = spacing / 2, true
    if spacing < first then spacing = 0 end
    next_at = math.min(next_at, now + spacing)
end

if changed and spacing == 0 then
    redis.call('DEL', KEYS[1])
elseif changed then
    local function whole(number) return string.format('%.0f', number) end
    redis.call('HSET', KEYS[1], 'spacing', whole(spacing), 'not_before', whole(not_before), 'next_at', whole(next_at),
        'booked', whole(booked), 'forget_at', whole(forget_at))
    -- A test's time passes at another speed than the server's.
    redis.call('PEXPIRE', KEYS[1], whole(is_given and 86400000 or math.ceil((forget_at - now) / 1000) + 1))
end
return {wait, before, spacing}
