-- End an attempt, or forget an entry that left the line by an order; fill the slot again.
--
-- Needs: common, line, fill. Keys and ARGV: common.lua.
-- A: router, request id, attempt ("" for one without a slot), output tokens
-- Reply: list of {id, attempt, replica} granted to the caller by this call

open_pool()
local id, attempt, output = A[2], A[3], A[4]
local e = get(id)
if not e or e[OWNER] ~= CALLER then return {} end

if e[STATE] == 'o' then
  if attempt == '' or attempt == e[ATTEMPT] then forget(id, e) end
  close_pool()
  return {}
end
if e[STATE] ~= 'f' or e[ATTEMPT] ~= attempt then return {} end

caused = {}
local used = output
-- The prompt of a resume was charged to its first attempt.
if e[RESUME] == 0 then used = used + e[PROMPT] end
local correction = used - e[CHARGED]
if e[COUNTED] == 1 then
  local served = S[e[CLASS]]
  set(served, P[served] + correction)
  set('st', P.st + correction)
end
serve(e[CLASS], e[TENANT], correction / e[WEIGHT], false)
free_slot(id, e)
forget(id, e)
run_fills()
close_pool()
return caused
