-- Shared by all scripts on announced load; load_scripts puts it in front of each.
--
-- KEYS: 1 HASH announced   "tenant/id" -> "end in ms, a space, the record"
-- ARGV: 1 time in ms, or "" for the server's; further ones are each script's own
local ANNOUNCED = KEYS[1]
local call = redis.call
local NOW = tonumber(ARGV[1])
if not NOW then
  local t = call('TIME')
  NOW = t[1] * 1000 + math.floor(t[2] / 1000)
end

-- Remove what is over; return the rest as fields and values in turn.
local function kept()
  local all, rest = call('HGETALL', ANNOUNCED), {}
  for i = 1, #all, 2 do
    if tonumber(string.match(all[i + 1], '^%d+')) > NOW then
      rest[#rest + 1] = all[i]
      rest[#rest + 1] = all[i + 1]
    else
      call('HDEL', ANNOUNCED, all[i])
    end
  end
  return rest
end
