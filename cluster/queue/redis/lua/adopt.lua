-- Make an entry this router's own.
--
-- Keys: names.lua. ARGV: common.lua.
-- A: router, tenant, request id
-- Reply: {0, age, span, tokenizer, position} waiting; {1, age, span, tokenizer, attempt, replica, started (0 or 1)}
--        granted; age: ms since it was submitted; span: of the request that submitted it, or ""; tokenizer: digest, as
--        in the entry, or ""; nil if the tenant has no such entry, or an order ends it

Q.pass_when_full()
Q.open_pool()
Q.caused = {}
local id = A[3]
local e = Q.get(id)
if not e or e[TENANT] ~= A[2] or e[STATE] == 'o' or e[ORDER] == 'c' then return false end

if e[OWNER] ~= A[1] then
  local was, state = e[OWNER], e[STATE]
  local started = state == 'f' and call('ZSCORE', K[OWNERS], Q.owned_member('r', id, e))
  if state == 'f' then
    call('ZREM', K[OWNERS], Q.grant_member(id, e), Q.owned_member('r', id, e))
    if e[ORDER] ~= '' then call('ZREM', K[OWNERS], Q.owned_member(e[ORDER], id, e)) end
  else
    Q.withdraw(id, e)
  end
  Q.tell_moved(id, was, A[1])
  e[OWNER] = A[1]
  if state == 'f' then
    call('ZADD', K[OWNERS], 0, started and Q.owned_member('r', id, e) or Q.grant_member(id, e))
    if e[ORDER] ~= '' then call('ZADD', K[OWNERS], 0, Q.owned_member(e[ORDER], id, e)) end
    e[BEATS] = 0
    Q.put(id, e)
  else
    Q.enter_line(id, e)
  end
  Q.know_router(A[1])
end
if e[STATE] == 'w' then Q.place(id, e) end
Q.run_fills()
for _, mine in ipairs(Q.caused) do
  if mine[1] ~= id then Q.ring(A[1]) end
end
Q.close_pool()
local age, span, tokenizer = Q.now - e[SUBMITTED], e[TRACE] or '', e[TOKENIZER] or ''
if e[STATE] == 'f' then
  local started = call('ZSCORE', K[OWNERS], Q.owned_member('r', id, e)) and 1 or 0
  return {1, age, span, tokenizer, e[ATTEMPT], e[REPLICA], started}
end
return {0, age, span, tokenizer, Q.position(id, e, {})}
