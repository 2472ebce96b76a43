-- Apply leases and deadlines that ended.
--
-- Keys: names.lua. ARGV: common.lua.
-- A: ""
-- Reply: how many entries were freed

Q.pass_when_full()
Q.open_pool()
if Q.torn() then Q.forget_requests() end
local freed = Q.reap()
Q.run_fills()
Q.close_pool()
return freed
