-- Give a grant back; its replica takes no more until its next heartbeat.
--
-- Needs: common, line, fill. Keys and ARGV: common.lua.
-- A: router, request id, attempt
-- Reply: list of {id, attempt, replica} granted to the caller by this call

open_pool()
local id, attempt = A[2], A[3]
local e = get(id)
if not e or e[OWNER] ~= CALLER or e[STATE] ~= 'f' or e[ATTEMPT] ~= attempt then return {} end

caused = {}
local replica = e[REPLICA]
local l = get_load(replica)
if l then l[CLOSED] = 1 end -- stored by free_slot
give_back(id, e)
if e[STATE] == 'w' then place(id, e) end
run_fills()
close_pool()
return caused
