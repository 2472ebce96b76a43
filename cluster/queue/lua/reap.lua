-- Apply leases and deadlines that ended.
--
-- Needs: common, line, fill, leases. Keys and ARGV: common.lua.
-- A: ""
-- Reply: how many entries were freed

open_pool()
local freed = reap()
run_fills()
close_pool()
return freed
