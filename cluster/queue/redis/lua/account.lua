-- Enter the account of a replica that has no lease: it starts, or has just left.
--
-- Keys: names.lua. ARGV: common.lua.
-- A: replica, its account, its account as last told ("" for none); both as M_* in names.lua
-- Reply: nil

Q.pass_when_full()
Q.open_pool()
Q.enter_times(A[1], A[2], A[3], 0, 0)
