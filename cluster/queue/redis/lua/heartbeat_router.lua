-- Renew a router's lease, note its links and started grants, revoke grants that it never started, reap and fill.
--
-- Keys: names.lua. ARGV: common.lua.
-- A: router, list of connected replicas, flat list of (request id, attempt) started, registry version that it has,
--    report about its requests (opaque, "" for none), list of its waiting entries whose position it wants,
--    whether it has had no time for its mail (0 or 1)
-- Reply: {mail, replicas or nil, registry version, waiting per class, running, live routers, flat positions, run id,
--        grants ever made per class, pool time (ms), operating point or nil, relief, marks as in quarantine.lua};
--        a replica is {id, record, state, windows x3, sequences, KV tokens, prefill tokens, age (ms), stats}

Q.pass_when_full()
Q.open_pool()
Q.tick()
Q.reads_mail = true
call('ZADD', K[ROUTERS], Q.now + Q.lease, A[1])
call('ZREM', K[PARTED], A[1])
Q.unpark(A[1])
if A[5] ~= '' then call('HSET', K[REPORTS], A[1], cmsgpack.pack({Q.now, A[5]})) end

local old = {}
for _, member in ipairs(Q.members(K[LINKS], A[1] .. '\0')) do old[member] = true end
for _, replica in ipairs(A[2]) do
  local member = A[1] .. '\0' .. replica
  if old[member] then
    old[member] = nil
  else
    call('ZADD', K[LINKS], 0, member)
    Q.want_fill(replica)
  end
end
for member in pairs(old) do call('ZREM', K[LINKS], member) end

local started = A[3]
for i = 1, #started, 2 do
  local e = Q.get(started[i])
  if e and e[STATE] == 'f' and e[ATTEMPT] == started[i + 1] and e[OWNER] == A[1] then Q.mark_started(started[i], e) end
end
for _, member in ipairs(Q.members(K[OWNERS], A[1] .. '\0g\0')) do
  local id = Q.split(member)[3]
  local e = Q.get(id)
  e[BEATS] = e[BEATS] + 1 - A[7]
  if e[BEATS] >= tonumber(ARGV[8]) then Q.give_back(id, e) else Q.put(id, e) end
end
Q.reap()
Q.make_room()
Q.want_free(8)
Q.run_fills()

local function registry()
  local names = Q.live_names(K[REPLICAS])
  -- Large registries come back after a change, and for their load in one of four seconds.
  if A[4] == P[P_VERSION] and #names > REPLICAS_SHOWN and math.floor(Q.now / 1000) % 4 ~= 0 then return false end
  return Q.list_replicas(names)
end

local positions, counts = {}, {}
for _, id in ipairs(A[6]) do
  local e = Q.get(id)
  if e and e[STATE] == 'w' and e[OWNER] == A[1] then
    -- It may be lost, and then the entry would never expire.
    if e[START_BY] > 0 then call('ZADD', K[DEADLINES], e[START_BY], id) end
    positions[#positions + 1] = id
    positions[#positions + 1] = Q.position(id, e, counts)
  end
end
local replicas = registry()
Q.close_pool()
local waiting = {Q.count(K[LINE], '0\0'), Q.count(K[LINE], '1\0'), Q.count(K[LINE], '2\0')}
local running, routers = call('ZCARD', K[SLOTS]), Q.live_names(K[ROUTERS])
return {Q.mailbox(A[1]), replicas, P[P_VERSION], waiting, running, routers, positions, Q.store_id(),
  {P[P_GRANTED], P[P_GRANTED + 1], P[P_GRANTED + 2]}, Q.now, Q.orders()[1], Q.orders()[2],
  P[P_MARKS] or 0}
