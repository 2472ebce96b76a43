-- Take or renew the lease. A new holder gets a higher fence.
--
-- Keys: common.lua. ARGV: 2 caller, 3 lease ms
-- Reply: {fence, holder, ms left}

local lease = tonumber(ARGV[3])
local holder, till = get('holder'), tonumber(get('until')) or 0
-- A lease that ends later than a full lease from now is from before the clock was set back.
local free = holder == '' or NOW >= till or till - NOW > lease
if holder ~= ARGV[2] then
  if not free then return {tonumber(get('fence')), holder, till - NOW} end
  call('HINCRBY', CONTROL, 'fence', 1)
end
call('HSET', CONTROL, 'holder', ARGV[2], 'until', text(NOW + lease))
return {tonumber(get('fence')), ARGV[2], lease}
