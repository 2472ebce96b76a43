-- Prolong a lease.
--
-- Keys: common.lua. ARGV: 3 token, 4 lease ms, 5 ttl ms
-- Reply: 1 prolonged; 0 not held; 2 a part of the job is lost, so it was ended

pass_when_full()
if get('token') ~= ARGV[3] then return 0 end
if end_if_torn(tonumber(ARGV[5])) then return 2 end
call('ZADD', OPEN, NOW + tonumber(ARGV[4]), ID)
return 1
