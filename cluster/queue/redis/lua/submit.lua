-- Add an entry. Grant it at once if there is room and its turn allows it.
--
-- Keys: names.lua. ARGV: common.lua.
-- A: router, request id, attempt base, tenant, class, prompt tokens, expected tokens, KV tokens, start within (ms),
--    client key, preferred replicas ("" or "\0a\0b\0"), weight, resume (0 or 1), most output tokens, most waiting
--    entries of its tenant (0: any), quota {tokens per minute, requests per minute, concurrency, strict, cost per day, cost
--    per month}, digest of the request, late after (ms, 0: never), choices that it takes quota for,
--    span of its request ("" or nil: none), digest of the tokenizer whose ids its client named ("" or nil: none)
-- Reply: {1, attempt, replica, marks} granted; {0, position, marks} waiting, marks as in quarantine.lua; either with
--        {which, ms until it renews, limit, used} of a budget, as in budget.lua, where the tenant has one;
--        {2, request id, result or nil, 1 while a choice of it waits or runs} the client key is known;
--        {-1} the queue is full; {-2, which, retry after (ms), limit} the quota does not allow it, as in quota.lua;
--        {-2, which, retry after (ms), limit, used} a budget does not, as in budget.lua;
--        {-3} too many entries of its tenant wait; {-4, request id} the client key belongs to another request;
--        {-5} another router has the entry

Q.open_pool()
Q.caused = {}
local id = A[2]

local function answer(e)
  local marks = P[P_MARKS] or 0
  if e[STATE] == 'f' then return {1, e[ATTEMPT], e[REPLICA], marks, unpack(Q.budget or {})} end
  return {0, Q.position(id, e, {}), marks, unpack(Q.budget or {})}
end

local known = Q.get(id)
if known and known[STATE] == 'o' and known[TENANT] == A[4] and (known[OWNER] ~= A[1] or known[ORDER] == 'e') then
  -- The old entry holds no slot and is replaced. Either it is under an order at another router, which may be dead and
  -- would never answer. Or it expired because the clock was set forward, and its own router knows that time is left.
  Q.forget_ordered(id, known)
  if known[OWNER] ~= A[1] then Q.tell_moved(id, known[OWNER], A[1]) end
  Q.close_pool() -- the new entry may be refused below
  known = nil
end
if known and known[OWNER] ~= A[1] then return {-5} end
if known then return answer(known) end
local resume = A[13]
if resume == 0 and A[10] ~= '' then
  local other = Q.find_key(A[4], A[10], id, A[17])
  if other then return other end
end

-- The fields of an entry, from OWNER to STRICT_TOKENS in names.lua.
local e = {A[1], A[4], A[5], '', A[6], A[7], A[8], A[9] > 0 and Q.now + A[9] or 0, A[10], A[11],
  A[12], A[3], 0, '', '', '', Q.now, 0, 0, 0, -1, 0, '', '', P[P_RUN], resume, 0, 0, 0, 0, A[18] > 0 and Q.now + A[18] or 0, 0}
if A[20] and A[20] ~= '' then e[TRACE] = A[20] end
if A[21] and A[21] ~= '' then e[TRACE], e[TOKENIZER] = e[TRACE] or '', A[21] end
-- A resumed request is never refused: it is under way.
if resume == 0 then
  local refused
  if call('HLEN', K[ENTRIES]) - call('ZCARD', K[SLOTS]) >= tonumber(ARGV[6]) then
    refused = {-1}
  elseif A[15] > 0 and Q.line_size() >= A[15] and Q.count(K[LINE], Q.tenant_prefix(e)) >= A[15] then
    refused = {-3}
  else
    refused = A[19] > 0 and Q.check_budgets(e[TENANT], A[16])
    local quota = not refused and Q.take_quota(e, A[14], A[16], A[19])
    if quota then refused = {-2, unpack(quota)} end
  end
  if refused then
    if A[19] == 0 then Q.return_part(e, A[14], A[16]) end
    return refused
  end
end
e[PLACE] = Q.next_place(resume == 1)
Q.entries[id] = e
if e[CLIENT_KEY] ~= '' then Q.open_key(id, e, A[17]) end
Q.know_router(A[1])

if Q.line_size() == 0 then
  e[STATE] = 'w'
  Q.find_room(id, e, function(replica, l)
    e[STATE] = ''
    Q.grant(id, e, replica, l, nil)
    return true
  end)
end
if e[STATE] ~= 'f' then
  Q.enter_line(id, e)
  Q.place(id, e)
end
Q.run_fills()
for _, mine in ipairs(Q.caused) do
  if mine[1] ~= id then Q.ring(A[1]) end
end
Q.close_pool()
return answer(e)
