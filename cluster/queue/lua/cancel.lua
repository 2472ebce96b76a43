-- Stop a request wherever it is.
--
-- Keys: names.lua. ARGV: common.lua.
-- A: router, tenant, request id or client key, by key (0 or 1)
-- Reply: request id, or nil when the tenant has no such entry

Q.open_pool()
local tenant, id = A[2], A[3]
if A[4] == 1 then id = Q.id_of_key(tenant, id) end
local e = id and Q.get(id)
if not e or e[TENANT] ~= tenant then return false end

if (e[STATE] == 'w' or e[STATE] == 'p') and e[OWNER] == A[1] then
  Q.withdraw(id, e)
  Q.forget(id, e)
else
  Q.order(id, e, 'c')
end
Q.want_free(4)
Q.run_fills()
Q.close_pool()
return id
