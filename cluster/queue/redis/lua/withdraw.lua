-- End an entry that runs nowhere: take it out of its place, or give back its unused grant.
--
-- Keys: names.lua. ARGV: common.lua.
-- A: router, request id, whether attempts of it ran (0 or 1; 2: none, and its request is refused after all), output
--    tokens of all attempts; for the ledger: requests, prompt tokens, cached tokens, and GPU-seconds and cost that are
--    not entered yet
-- Reply: list of {id, attempt, replica} granted to the caller by this call

Q.pass_when_full()
Q.open_pool()
local id, ran, output = A[2], A[3] == 1, A[4]
local e = Q.get(id)
if not e or e[OWNER] ~= A[1] then
  call('ZREM', K[OWNERS], A[1] .. '\0d\0' .. id)
  return {}
end

Q.caused = {}
Q.settle(e, ran, output)
if A[3] == 2 then Q.return_request(e) end
if ran then Q.enter_ledger(e, A[5], A[6], output, A[7], A[8], A[9]) end
if e[STATE] == 'f' then Q.free_slot(id, e) else Q.withdraw(id, e) end
Q.forget(id, e)
Q.want_free(4)
Q.run_fills()
Q.close_pool()
return Q.caused
