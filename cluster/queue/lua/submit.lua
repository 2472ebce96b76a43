-- Add an entry; grant it at once where there is room and its turn allows.
--
-- Needs: common, line, fill. Keys and ARGV: common.lua.
-- A: router, request id, attempt base, tenant, class, prompt tokens, expected tokens, KV tokens, start within (ms),
--    client key, preferred replicas ("" or "\0a\0b\0"), weight, resume (0 or 1)
-- Reply: {1, attempt, replica} granted; {0, position} waiting; {-1} the waiting room is full

open_pool()
caused = {}
local id = A[2]

local function answer(e)
  if e[STATE] == 'f' then return {1, e[ATTEMPT], e[REPLICA]} end
  return {0, position(id, e)}
end

local known = get(id)
if known then return answer(known) end
local resume = A[13]
-- Work that is under way is not turned away at the door.
if resume == 0 and call('HLEN', ENTRIES) - call('ZCARD', SLOTS) >= MAX_WAITING then return {-1} end

local e = {CALLER, A[4], A[5], next_place(resume == 1), A[6], A[7], A[8], A[9] > 0 and NOW + A[9] or 0, A[10], A[11],
  A[12], A[3], 0, '', '', '', NOW, 0, 0, 0, -1, 0, '', '', P.run, resume, 0}
entries[id] = e
if e[CLIENT_KEY] ~= '' then call('HSETNX', CLIENT_KEYS, e[TENANT] .. '\0' .. e[CLIENT_KEY], id) end
if not call('ZSCORE', ROUTERS, CALLER) and not call('ZSCORE', PARTED, CALLER) then
  -- A router that was never heard of: its lease starts here, so that what it leaves behind is reaped.
  call('ZADD', ROUTERS, NOW + LEASE, CALLER)
end

if call('ZCARD', LINE) == 0 then
  e[STATE] = 'w'
  find_room(id, e, function(replica, l)
    e[STATE] = ''
    grant(id, e, replica, l, nil)
    return true
  end)
end
if e[STATE] ~= 'f' then
  enter_line(id, e)
  place(id, e)
end
run_fills()
for _, mine in ipairs(caused) do
  if mine[1] ~= id then ring(CALLER) end
end
close_pool()
return answer(e)
