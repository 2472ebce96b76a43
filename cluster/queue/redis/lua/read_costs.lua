-- Read the pool's costs by hour.
--
-- Keys: names.lua. ARGV: common.lua.
-- A: first hour, last hour
-- Reply: {next hour to read or -1 at the end, list of {hour, packed line}}

local oldest = call('ZRANGE', K[LEDGER_DAYS], 0, 0, 'WITHSCORES')[2]
if not oldest then return {-1, {}} end
local newest = call('ZRANGE', K[LEDGER_DAYS], -1, -1, 'WITHSCORES')[2]
local first = math.max(A[1], oldest * 24)
local last = math.min(A[2], newest * 24 + 23)
local till = math.min(last, first + LINES_PER_CALL - 1)
local fields, lines = {}, {}
for hour = first, till do fields[#fields + 1] = string.format('%d\0\0%d', math.floor(hour / 24), hour) end
if #fields == 0 then return {-1, {}} end
for i, packed in ipairs(call('HMGET', K[LEDGER], unpack(fields))) do
  if packed then lines[#lines + 1] = {first + i - 1, packed} end
end
return {till < last and till + 1 or -1, lines}
