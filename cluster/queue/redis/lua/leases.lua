-- Shared: leases, which say which routers and replicas are alive.

-- Note a heartbeat. If a key of the pool is lost, the rest of it goes too. After a gap in which no process could renew,
-- a clock that ran backward or a new run id, every lease counts as live for one full lease.
function Q.tick()
  if Q.new or Q.torn() then Q.forget_requests() end
  local run = ARGV[2]
  if run == '' then run = string.match(call('INFO', 'server'), 'run_id:(%w+)') end
  if Q.backward or Q.now - P[P_TICK] > Q.lease / 2 or run ~= P[P_RUN] then Q.set(P_AMNESTY, Q.now + Q.lease) end
  if Q.backward then Q.set(P_SKEW, P[P_TIME] - Q.raw) end
  Q.set(P_RUN, run)
  P[P_TICK], P[P_TIME] = Q.now, Q.now
  Q.changed = true
  Q.lenient = Q.now < P[P_AMNESTY]
end

-- Return the identity of the store for routers and replicas. It changes after a restart or a loss of all data.
function Q.store_id() return P[P_RUN] .. '@' .. string.format('%d', P[P_BORN]) end

function Q.bump_version() Q.set(P_VERSION, P[P_VERSION] + 1) end

-- Take a grant out of the mail: its owner or replica lists it as started.
function Q.mark_started(id, e)
  if call('ZREM', K[OWNERS], Q.grant_member(id, e)) == 0 then return end
  call('ZADD', K[OWNERS], '0', Q.owned_member('r', id, e))
  call('ZREM', K[SLOTS], Q.slot_member('g', id, e))
  call('ZADD', K[SLOTS], '0', Q.slot_member('r', id, e))
end

function Q.drop(id, e)
  if e[STATE] == 'f' then Q.free_slot(id, e) else Q.withdraw(id, e) end
  Q.forget(id, e)
end

-- Forget entries that a router without lease has on replicas that are gone too; return how many.
function Q.drop_orphans(router)
  local freed = 0
  for _, letter in ipairs({'g', 'r'}) do
    for _, member in ipairs(Q.members(K[OWNERS], router .. '\0' .. letter .. '\0')) do
      local id = Q.split(member)[3]
      local e = Q.get(id)
      if not call('ZSCORE', K[REPLICAS], e[REPLICA]) then
        Q.drop(id, e)
        freed = freed + 1
      end
    end
  end
  return freed
end

-- Return each of these replicas as {id, record, state, windows x3, sequences, KV tokens, prefill tokens, age (ms),
-- stats}.
function Q.list_replicas(names)
  local list = {}
  for _, name in ipairs(names) do
    local l, packed = Q.get_load(name), call('HGET', K[REGISTRY], name)
    -- If either is lost, the replica's next heartbeat brings it back.
    if l and packed then
      local shown = cmsgpack.unpack(packed)
      list[#list + 1] = {name, shown[1], l[R_STATE], l[W_SEQUENCES], l[W_KV], l[W_PREFILL], l[HELD] + l[EXTRA],
        l[USED_KV], l[USED_PREFILL], Q.now - l[BEAT], shown[2]}
    end
  end
  return list
end

-- End a router's lease; its waiting entries go at `due` (ms). Return how many entries were freed.
function Q.part_router(router, due)
  call('ZREM', K[ROUTERS], router)
  call('HDEL', K[BELLS], router)
  call('HDEL', K[REPORTS], router)
  call('ZADD', K[PARTED], due, router)
  Q.router_alive[router] = nil
  return Q.drop_orphans(router)
end

-- Take waiting entries of a router without lease out of the line, so that they do not hide others. They keep their
-- place. Return how many: at most `limit`, and fewer only if none is left. `reap` goes on with the rest.
function Q.park(router, limit)
  local list = Q.members(K[OWNERS], router .. '\0w\0', limit)
  for _, member in ipairs(list) do
    local id = Q.split(member)[4]
    local e = Q.get(id)
    Q.leave_line(id, e)
    e[STATE] = 'p'
    call('ZADD', K[OWNERS], 0, Q.waiting_member('p', id, e))
    Q.put(id, e)
  end
  return #list
end

-- Put parked entries of a returning router back at their places, oldest first, at most CHUNK of them. Its next
-- heartbeat goes on with the rest.
function Q.unpark(router)
  for _, member in ipairs(Q.members(K[OWNERS], router .. '\0p\0', CHUNK)) do
    local id = Q.split(member)[4]
    call('ZREM', K[OWNERS], member)
    Q.enter_line(id, Q.get(id))
  end
end

-- Forget at most `limit` entries of a router that hold no slot: waiting, parked, expired, and those of the cancelled
-- ones that do not run. Return how many, 0 if none is left.
function Q.drop_waiting(router, limit)
  local dropped = 0
  for _, letter in ipairs({'w', 'p', 'e', 'c'}) do
    local some = letter ~= 'c' and limit - dropped or nil
    for _, member in ipairs(some == 0 and {} or Q.members(K[OWNERS], router .. '\0' .. letter .. '\0', some)) do
      local parts = Q.split(member)
      local id = parts[#parts]
      local e = dropped < limit and Q.get(id)
      if e and e[STATE] ~= 'f' then
        Q.drop(id, e)
        dropped = dropped + 1
      end
    end
  end
  -- News that other routers adopted entries has no reader any more.
  for _, member in ipairs(Q.members(K[OWNERS], router .. '\0d\0')) do call('ZREM', K[OWNERS], member) end
  return dropped
end

function Q.drop_links(router)
  local list = Q.members(K[LINKS], router .. '\0')
  for _, member in ipairs(list) do call('ZREM', K[LINKS], member) end
end

-- Remove a replica. Entries of living routers stay: their owners decide. Return how many entries were freed. `silent`:
-- for how long nothing was heard of it, in ms.
function Q.remove_replica(replica, silent)
  local l = Q.get_load(replica)
  Q.close_account(replica, l, silent)
  if l and l[R_RESERVED] ~= '' then
    local e = Q.get(l[R_RESERVED])
    if e and e[RESERVED] == replica then
      e[RESERVED] = ''
      Q.put(l[R_RESERVED], e)
    end
  end
  Q.loads[replica], Q.unstored[replica], Q.unplaced[replica], Q.replica_alive[replica] = nil, nil, nil, nil
  Q.placed[replica] = nil
  call('HDEL', K[LOAD], replica)
  call('HDEL', K[REGISTRY], replica)
  call('ZREM', K[FREE], replica)
  local known = call('ZREM', K[REPLICAS], replica)
  if known == 1 then Q.bump_version() end
  local freed = 0
  for _, letter in ipairs({'g', 'r'}) do
    for _, member in ipairs(Q.members(K[SLOTS], replica .. '\0' .. letter .. '\0')) do
      local id = Q.split(member)[3]
      local e = Q.get(id)
      if not Q.router_live(e[OWNER]) then
        Q.drop(id, e)
        freed = freed + 1
      end
    end
  end
  return freed
end

-- Apply leases and deadlines that ended; return how many entries were freed. Do nothing while every lease counts as
-- live.
function Q.reap()
  if Q.lenient then return 0 end
  local freed, moved = 0, 0
  for _, router in ipairs(call('ZRANGEBYSCORE', K[ROUTERS], '-inf', Q.now)) do
    local till = tonumber(call('ZSCORE', K[ROUTERS], router))
    freed = freed + Q.part_router(router, till + tonumber(ARGV[5]))
  end
  for _, replica in ipairs(call('ZRANGEBYSCORE', K[REPLICAS], '-inf', Q.now)) do
    freed = freed + Q.remove_replica(replica, Q.lease)
  end
  -- Every heartbeat reaps, so the rest waits for some milliseconds only.
  for _, router in ipairs(call('ZRANGE', K[PARTED], 0, -1)) do
    if moved < CHUNK then moved = moved + Q.park(router, CHUNK - moved) end
  end
  local gone = 0
  for _, router in ipairs(call('ZRANGEBYSCORE', K[PARTED], '-inf', Q.now)) do
    if moved + gone < CHUNK then
      local dropped = Q.drop_waiting(router, CHUNK - moved - gone)
      gone = gone + dropped
      if dropped == 0 then
        call('ZREM', K[PARTED], router)
        Q.drop_links(router)
      end
    end
  end
  freed = freed + gone
  for _, id in ipairs(call('ZRANGEBYSCORE', K[DEADLINES], '-inf', '(' .. Q.now, 'LIMIT', 0, CHUNK)) do
    Q.order(id, Q.get(id), 'e')
    freed = freed + 1
  end
  if freed + moved > 0 then Q.want_free(8) end
  Q.mend_lists()
  Q.tidy_keys()
  Q.tidy_tenants()
  Q.tidy_ledger()
  Q.tidy_meters()
  return freed
end

function Q.live_names(key)
  if Q.lenient then return call('ZRANGE', key, 0, -1) end
  return call('ZRANGEBYSCORE', key, '(' .. Q.now, '+inf')
end
