-- Stop a request wherever it is.
--
-- Needs: common, line, fill. Keys and ARGV: common.lua.
-- A: router, tenant, request id or client key, by key (0 or 1)
-- Reply: request id, or nil when the tenant has no such entry

open_pool()
local tenant, id = A[2], A[3]
if A[4] == 1 then id = call('HGET', CLIENT_KEYS, tenant .. '\0' .. id) end
local e = id and get(id)
if not e or e[TENANT] ~= tenant then return false end

if (e[STATE] == 'w' or e[STATE] == 'p') and e[OWNER] == CALLER then
  withdraw(id, e)
  forget(id, e)
else
  order(id, e, 'c')
end
want_free(4)
run_fills()
close_pool()
return id
