-- End an attempt, or forget an entry that left the line by an order; fill the slot again.
--
-- Keys: names.lua. ARGV: common.lua.
-- A: router, request id, attempt ("" for one without a slot), output tokens of all attempts; for the ledger: requests,
--    prompt tokens, cached tokens, and GPU-seconds and cost of this attempt
-- Reply: list of {id, attempt, replica} granted to the caller by this call

Q.pass_when_full()
Q.open_pool()
local id, attempt, output = A[2], A[3], A[4]
local e = Q.get(id)
if not e or e[OWNER] ~= A[1] then
  -- The answer to order "d": the entry belongs to another router now.
  call('ZREM', K[OWNERS], A[1] .. '\0d\0' .. id)
  return {}
end

if e[STATE] == 'o' then
  if attempt == '' or attempt == e[ATTEMPT] then Q.forget_ordered(id, e) end
  Q.close_pool()
  return {}
end
if e[STATE] ~= 'f' or e[ATTEMPT] ~= attempt then return {} end

Q.caused = {}
Q.settle(e, true, output)
Q.enter_ledger(e, A[5], A[6], output, A[7], A[8], A[9])
Q.free_slot(id, e)
Q.forget(id, e, true)
Q.run_fills()
Q.close_pool()
return Q.caused
