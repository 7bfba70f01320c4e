-- A token bucket, the same as in reconcile/intake/rate_limit.py. The key is the time at which the bucket is full again;
-- if it is missing, the bucket is full.
-- ARGV: now (µs; '' for the server's), interval between tokens (µs), tolerance (µs): all tokens but one
local now, left = tonumber(ARGV[1]), 0
if now then
    left = 86400000 -- a test's time passes at another speed than the server's
else
    local time = redis.call('TIME')
    now = time[1] * 1000000 + time[2]
end
local interval, tolerance = tonumber(ARGV[2]), tonumber(ARGV[3])
local held = redis.pcall('GET', KEYS[1])
if type(held) == 'table' then -- not written by this script: as if it were missing, or no other key could be used
    redis.call('DEL', KEYS[1])
    held = false
end
local full_at = math.max(now, tonumber(held or now) or now)
full_at = math.min(full_at, now + tolerance + interval) -- no more is possible, unless the clock was set back
local wait = full_at - now - tolerance
if wait > 0 then return {wait} end
full_at = full_at + interval
left = left + math.ceil((full_at - now) / 1000)
redis.call('SET', KEYS[1], string.format('%.0f', full_at), 'PX', string.format('%.0f', left))
return {0}
