-- End an attempt whose request goes on: it waits for another slot at the head of its tenant's list, its charge kept.
--
-- Keys: names.lua. ARGV: common.lua.
-- A: router, request id, attempt, output tokens so far, GPU-seconds and cost of this attempt
-- Reply: list of {id, attempt, replica} granted to the caller by this call

Q.pass_when_full()
Q.open_pool()
local id = A[2]
local e = Q.get(id)
if not e or e[OWNER] ~= A[1] or e[STATE] ~= 'f' or e[ATTEMPT] ~= A[3] then return {} end

Q.caused = {}
Q.enter_ledger(e, 0, 0, 0, 0, A[5], A[6])
if e[ORDER] == 'f' then e[PREEMPTIONS] = e[PREEMPTIONS] + 1 end
e[START_BY] = 0
e[LATE_AT] = 0
Q.give_back(id, e)
if e[STATE] == 'w' then Q.place(id, e) end
Q.run_fills()
Q.close_pool()
return Q.caused
