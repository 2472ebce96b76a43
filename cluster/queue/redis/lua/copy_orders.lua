-- Take over the autoscaler's orders from the pool's first cell.
--
-- Keys: names.lua, of another cell. ARGV: common.lua.
-- A: "", operating point ("": none is known, and one that is here stays), relief, ms until it ends, standby, ms until
--    that ends
-- Reply: 1

Q.pass_when_full()
Q.open_pool()
if A[2] ~= '' then call('HSET', K[CONTROL], 'point', A[2]) end
-- Whoever copies does so with each heartbeat. If nobody does any more they end.
local function till(left) return string.format('%d', Q.now + math.min(left, Q.lease)) end
call('HSET', K[CONTROL], 'relief', A[3], 'relief_until', till(A[4]), 'standby', A[5], 'standby_until', till(A[6]))
return 1
