-- Renew a replica's lease, publish it, reconcile what it runs with the slots on record, reap and fill.
--
-- Keys: names.lua. ARGV: common.lua.
-- A: replica, record, state, windows x3, KV tokens in use (-1: unknown), stats, flat list of (request id, attempt)
--    running, list of request ids that are past their prefill, list of output tokens of those running (-1: must
--    not give way), most slots of class BATCH (-1: any), account of its time, account as last told; both as M_* in
--    names.lua, or "" for none
-- Reply: {live routers, run id, operating point or nil, relief, whether to stand by and most cells as in orders.lua}

Q.pass_when_full()
Q.open_pool()
Q.tick()
local replica, record, state, reported, stats = A[1], A[2], A[3], A[7], A[8]
call('ZADD', K[REPLICAS], Q.now + Q.lease, replica)

local l = Q.get_load(replica)
if l and l[HELD] > 0 and call('EXISTS', K[SLOTS]) == 0 then
  -- The slots are lost.
  Q.forget_requests()
  Q.tick()
  call('ZADD', K[REPLICAS], Q.now + Q.lease, replica)
  Q.loads, Q.placed, l = {}, {}, nil
end
local shown = call('HGET', K[REGISTRY], replica)
local fresh = not l
-- The fields of a load, from W_SEQUENCES to REPORTED in names.lua.
if fresh then l = {0, 0, 0, 0, 0, 0, 0, '', 0, '', 0, 0} end
l[W_BATCH], l[HELD_BATCH], l[WALLED] = A[12], l[HELD_BATCH] or 0, l[WALLED] or 0
l[SETTLED], l[SETTLED_COST] = l[SETTLED] or 0, l[SETTLED_COST] or 0
-- Without an account, what was settled waits for the end of its lease.
if A[13] ~= '' then
  Q.enter_times(replica, A[13], A[14], l[SETTLED], l[SETTLED_COST])
  l[SETTLED], l[SETTLED_COST] = 0, 0
end
if fresh or not shown or cmsgpack.unpack(shown)[1] ~= record or l[R_STATE] ~= state
  or l[W_SEQUENCES] ~= A[4] or l[W_KV] ~= A[5] or l[W_PREFILL] ~= A[6] then
  Q.bump_version()
end
call('HSET', K[REGISTRY], replica, cmsgpack.pack({record, stats}))
local last_beat = l[BEAT]
l[W_SEQUENCES], l[W_KV], l[W_PREFILL], l[R_STATE], l[CLOSED], l[BEAT] = A[4], A[5], A[6], state, 0, Q.now
Q.loads[replica] = l
if state ~= 'ready' and l[R_RESERVED] ~= '' then
  local e = Q.get(l[R_RESERVED])
  if e and e[RESERVED] == replica then
    e[RESERVED] = ''
    Q.put(l[R_RESERVED], e)
  end
  l[R_RESERVED] = ''
end

for _, id in ipairs(A[10]) do
  local e = Q.get(id)
  if e and e[STATE] == 'f' and e[REPLICA] == replica and e[PREFILLED] == 0 then
    e[PREFILLED] = 1
    Q.put(id, e)
    l[USED_PREFILL] = math.max(0, l[USED_PREFILL] - e[PROMPT])
  end
end

-- Compare the slots on record with what the replica says it runs. A slot of a dead router is freed if the replica had a
-- heartbeat since the grant and does not report it now.
local running, left = {}, 0
for i = 1, #A[9], 2 do
  local pair = A[9][i] .. '\0' .. A[9][i + 1]
  if not running[pair] then
    running[pair] = true
    left = left + 1
  end
end
local held, unlisted_kv, batch = 0, 0, 0
local recount = fresh or (reported < 0 and l[REPORTED] == 1)
local kv, prefill = 0, 0
for _, letter in ipairs({'r', 'g'}) do
  for _, member in ipairs(Q.members(K[SLOTS], replica .. '\0' .. letter .. '\0')) do
    local parts = Q.split(member)
    local id = parts[3]
    local listed = running[id .. '\0' .. parts[4]]
    local e = (recount or not listed or letter == 'g' or A[12] >= 0) and Q.get(id)
    if listed then
      left = left - 1
      if letter == 'g' then Q.mark_started(id, e) end
    end
    if not listed and e[GRANTED] < last_beat and not Q.router_live(e[OWNER]) then
      Q.drop(id, e)
    else
      held = held + 1
      if e and e[CLASS] == 2 then batch = batch + 1 end
      if not listed then unlisted_kv = unlisted_kv + e[KV] end
      if recount then
        kv = kv + e[KV]
        if e[PREFILLED] == 0 then prefill = prefill + e[PROMPT] end
      end
    end
  end
end
l[HELD], l[EXTRA] = held, left
if A[12] >= 0 then l[HELD_BATCH] = batch end
if fresh then l[USED_PREFILL] = prefill end
if reported >= 0 then l[USED_KV] = reported + unlisted_kv elseif recount then l[USED_KV] = kv end
l[REPORTED] = reported >= 0 and 1 or 0
Q.placed[replica] = nil -- what is lost there is mended
Q.put_load(replica, l)

Q.reap()
Q.want_fill(replica)
Q.run_fills()
local produced = {}
for i = 1, #A[9], 2 do produced[A[9][i] .. '\0' .. A[9][i + 1]] = A[11][(i + 1) / 2] or 0 end
Q.preempt(replica, l, produced)
local routers = Q.live_names(K[ROUTERS])
Q.close_pool()
return {routers, Q.store_id(), Q.orders()[1], Q.orders()[2], Q.told_replica(replica)}
