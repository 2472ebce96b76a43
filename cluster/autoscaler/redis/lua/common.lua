-- Shared by all scripts; redis/scripts.py puts it in front of each.
--
-- KEYS: 1 HASH control   holder fence until (the lease), state target (the leader's), relief relief_until, standby
--                        standby_until standby_fence, point point_version, decision (number of the last), failed_starts failure; times in ms
--       2 LIST decisions newest first, "number record"
--       3 STRING forecast record of the pool's load
-- ARGV: 1 time in ms, or "" for the server's; further ones are each script's own
local CONTROL, DECISIONS, FORECAST = KEYS[1], KEYS[2], KEYS[3]
local call = redis.call
local NOW = tonumber(ARGV[1])
if not NOW then
  local t = call('TIME')
  NOW = t[1] * 1000 + math.floor(t[2] / 1000)
end

-- A full Redis refuses a script whose first write may need memory, and lets all other writes pass. So this first write
-- deletes nothing. A leader must be able to add the replicas that would empty the queue, and the data here is bounded.
call('HDEL', CONTROL, '')

local function get(field) return call('HGET', CONTROL, field) or '' end

local function text(n) return string.format('%.0f', n) end
