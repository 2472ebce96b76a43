-- Return a pool's record.
--
-- ARGV: 1 time in ms, or "" for the server's
-- Reply: version, record or "", pool time in ms

local now = tonumber(ARGV[1])
if not now then
  local t = call('TIME')
  now = t[1] * 1000 + math.floor(t[2] / 1000)
end
local found = call('HMGET', ROLLOUT, 'version', 'record')
return {tonumber(found[1]) or 0, found[2] or '', now}
