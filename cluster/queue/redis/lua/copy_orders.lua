-- Take over the autoscaler's orders from the pool's first cell.
--
-- Keys: names.lua, of another cell. ARGV: common.lua.
-- A: "", operating point ("": none is known, and one that is here stays), relief
-- Reply: 1

Q.pass_when_full()
Q.open_pool()
if A[2] ~= '' then call('HSET', K[CONTROL], 'point', A[2]) end
-- Whoever copies does so with each heartbeat while there is relief. If nobody does any more it ends.
call('HSET', K[CONTROL], 'relief', A[3], 'relief_until', string.format('%d', Q.now + Q.lease))
return 1
