-- Take over the leader's orders to stand by, in a cell of its pool other than the first.
--
-- Keys: common.lua, of that cell. ARGV: 2 fence of the leader, 3 replicas that stand by as in commit.lua, 4 milliseconds
-- for which the orders hold
-- Reply: 1; 0 where a later leader has given orders

if (tonumber(get('standby_fence')) or 0) > tonumber(ARGV[2]) then return 0 end
call('HSET', CONTROL, 'standby_fence', ARGV[2], 'standby', ARGV[3], 'standby_until', text(NOW + ARGV[4]))
return 1
