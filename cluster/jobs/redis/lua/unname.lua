-- Forget a client key whose job is gone.
--
-- Keys: common.lua. ARGV: 3 tenant, 4 client key
-- Reply: 1

pass_when_full()
local field = ARGV[3] .. '\0' .. ARGV[4]
if call('HGET', NAMES, field) == ID and get('state') == '' then call('HDEL', NAMES, field) end
return 1
