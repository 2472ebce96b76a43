-- Give back a grant that could not be started. Its replica takes no more grants until its next heartbeat.
--
-- Keys: names.lua. ARGV: common.lua.
-- A: router, request id, attempt
-- Reply: list of {id, attempt, replica} granted to the caller by this call

Q.pass_when_full()
Q.open_pool()
local id, attempt = A[2], A[3]
local e = Q.get(id)
if not e or e[OWNER] ~= A[1] or e[STATE] ~= 'f' or e[ATTEMPT] ~= attempt then return {} end

Q.caused = {}
local replica = e[REPLICA]
local l = Q.get_load(replica)
if l then l[CLOSED] = 1 end -- stored by free_slot
Q.give_back(id, e)
if e[STATE] == 'w' then Q.place(id, e) end
Q.run_fills()
Q.close_pool()
return Q.caused
