-- Take a waiting entry out of this cell, so that its router can put it into another one. What was granted, ordered to end
-- or adopted by another router meanwhile stays.
--
-- Keys: names.lua. ARGV: common.lua.
-- A: router, request id
-- Reply: list of {id, attempt, replica} granted to the caller by this call; nil if the entry stays

Q.pass_when_full()
Q.open_pool()
local id = A[2]
local e = Q.get(id)
if not e or e[OWNER] ~= A[1] or e[STATE] ~= 'w' or e[ORDER] ~= '' then return false end

Q.caused = {}
Q.settle(e, false, 0)
Q.withdraw(id, e)
Q.forget(id, e)
Q.want_free(4)
Q.run_fills()
Q.close_pool()
return Q.caused
