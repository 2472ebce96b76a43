-- End an attempt, or forget an entry that left the line by an order; fill the slot again.
--
-- Keys: names.lua. ARGV: common.lua.
-- A: router, request id, attempt ("" for one without a slot), output tokens
-- Reply: list of {id, attempt, replica} granted to the caller by this call

Q.open_pool()
local id, attempt, output = A[2], A[3], A[4]
local e = Q.get(id)
if not e or e[OWNER] ~= A[1] then return {} end

if e[STATE] == 'o' then
  if attempt == '' or attempt == e[ATTEMPT] then Q.forget(id, e) end
  Q.close_pool()
  return {}
end
if e[STATE] ~= 'f' or e[ATTEMPT] ~= attempt then return {} end

Q.caused = {}
local used = output
-- The prompt of a resume was charged to its first attempt.
if e[RESUME] == 0 then used = used + e[PROMPT] end
local correction = used - e[CHARGED]
if e[COUNTED] == 1 then
  Q.set(P_S + e[CLASS], P[P_S + e[CLASS]] + correction)
  Q.set(P_SERVED, P[P_SERVED] + correction)
end
Q.serve(e[CLASS], e[TENANT], correction / e[WEIGHT], false)
Q.free_slot(id, e)
Q.forget(id, e)
Q.run_fills()
Q.close_pool()
return Q.caused
