-- Prolong a lease.
--
-- Keys: common.lua. ARGV: 3 token, 4 lease ms
-- Reply: 1 prolonged; 0 not held

pass_when_full()
if get('token') ~= ARGV[3] then return 0 end
call('ZADD', OPEN, NOW + tonumber(ARGV[4]), ID)
return 1
