-- Add an entry; grant it at once where there is room and its turn allows.
--
-- Keys: names.lua. ARGV: common.lua.
-- A: router, request id, attempt base, tenant, class, prompt tokens, expected tokens, KV tokens, start within (ms),
--    client key, preferred replicas ("" or "\0a\0b\0"), weight, resume (0 or 1)
-- Reply: {1, attempt, replica} granted; {0, position} waiting; {-1} the waiting room is full

Q.open_pool()
Q.caused = {}
local id = A[2]

local function answer(e)
  if e[STATE] == 'f' then return {1, e[ATTEMPT], e[REPLICA]} end
  return {0, Q.position(id, e, {})}
end

local known = Q.get(id)
if known then return answer(known) end
local resume = A[13]
-- Work that is under way is not turned away at the door.
if resume == 0 and call('HLEN', K[ENTRIES]) - call('ZCARD', K[SLOTS]) >= tonumber(ARGV[6]) then return {-1} end

local e = {A[1], A[4], A[5], Q.next_place(resume == 1), A[6], A[7], A[8], A[9] > 0 and Q.now + A[9] or 0, A[10], A[11],
  A[12], A[3], 0, '', '', '', Q.now, 0, 0, 0, -1, 0, '', '', P[P_RUN], resume, 0}
Q.entries[id] = e
if e[CLIENT_KEY] ~= '' then call('HSETNX', K[CLIENT_KEYS], e[TENANT] .. '\0' .. e[CLIENT_KEY], id) end
if not call('ZSCORE', K[ROUTERS], A[1]) and not call('ZSCORE', K[PARTED], A[1]) then
  -- A router that was never heard of: its lease starts here, so that what it leaves behind is reaped.
  call('ZADD', K[ROUTERS], Q.now + Q.lease, A[1])
end

if call('ZCARD', K[LINE]) == 0 then
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
