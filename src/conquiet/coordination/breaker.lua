-- One step of a circuit breaker, the same as in local/breaker.py. The key is a hash; if it is missing, the breaker is closed.
-- ARGV: now (µs; '' for the server's), call, threshold, cooldown (µs), trials, ticket ('' for none), rate limited (0, 1)
local now = tonumber(ARGV[1])
if not now then
    local time = redis.call('TIME')
    now = time[1] * 1000000 + time[2]
end
local call, threshold, cooldown, trials = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local ticket, rate_limited = tonumber(ARGV[6]), tonumber(ARGV[7])

local held = redis.pcall('HMGET', KEYS[1], 'state', 'openings', 'opened_at', 'failures', 'rate_limits', 'probes')
if held.err then -- not written by this script: as if it were missing, or no other key could be used
    redis.call('DEL', KEYS[1])
    held = {}
end
local state, openings, opened_at = held[1] or 'CLOSED', tonumber(held[2] or 0) or 0, tonumber(held[3] or 0) or 0
if state ~= 'OPEN' and state ~= 'HALF_OPEN' then state = 'CLOSED' end
local failures, rate_limits = tonumber(held[4] or 0) or 0, tonumber(held[5] or 0) or 0
local probes = {}
for begun in string.gmatch(held[6] or '', '%d+') do probes[#probes + 1] = math.min(tonumber(begun), now) end

local before, changed, allowed = state, false, 0
if opened_at > now then -- the clock was set back: at most one more cooldown
    opened_at, changed = now, true
end
local function enter(new)
    if new == 'OPEN' then openings, opened_at = openings + 1, now end
    state, probes, changed = new, {}, true
end
if state == 'OPEN' and now - opened_at >= cooldown then enter('HALF_OPEN') end

if call == 'allow' and state == 'CLOSED' then
    allowed = 1
elseif call == 'allow' and state == 'HALF_OPEN' then
    local heard_of = {}
    for _, begun in ipairs(probes) do
        if begun > now - cooldown then heard_of[#heard_of + 1] = begun end
    end
    probes = heard_of
    if #probes < trials then
        probes[#probes + 1] = now
        allowed, changed = 1, true
    end
elseif call == 'success' or call == 'failure' then
    -- A call from before the breaker opened, and one while no trial is running, says nothing about the present.
    local counts = state ~= 'OPEN' and (not held[1] or not ticket or ticket == openings)
    if counts and (state ~= 'HALF_OPEN' or #probes > 0) then
        if call == 'success' then
            changed = changed or failures > 0
            failures, rate_limits = 0, 0
            if state == 'HALF_OPEN' then enter('CLOSED') end
        else
            failures, rate_limits, changed = failures + 1, rate_limits + rate_limited, true
            if state == 'HALF_OPEN' or failures >= threshold then enter('OPEN') end
        end
    end
end

if changed then
    local written = {}
    for i, begun in ipairs(probes) do written[i] = string.format('%.0f', begun) end
    redis.call('HSET', KEYS[1], 'state', state, 'openings', openings, 'opened_at', string.format('%.0f', opened_at),
        'failures', failures, 'rate_limits', rate_limits, 'probes', table.concat(written, ','))
    -- A platform that nobody asks any more leaves nothing behind.
    redis.call('PEXPIRE', KEYS[1], string.format('%.0f', math.max(86400000, cooldown / 500)))
end
local left = state == 'OPEN' and opened_at + cooldown - now or 0
return {allowed, before, state, openings, failures, rate_limits, left}
