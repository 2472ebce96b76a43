-- Shared by the scripts that judge who lives.

-- Note a heartbeat. After a gap in which nobody could renew, a clock that ran backward or a new run id, everybody has one
-- full lease.
local function tick()
  local run = ARGV[2]
  if run == '' then run = string.match(call('INFO', 'server'), 'run_id:(%w+)') end
  if BACKWARD or NOW - P.tick > LEASE / 2 or run ~= P.run then set('amnesty', NOW + LEASE) end
  if BACKWARD then set('skew', P.time - P.raw) end
  set('run', run)
  P.tick = NOW
  changed.tick = true
  LENIENT = NOW < P.amnesty
end

local function bump_version() set('version', P.version + 1) end

-- A grant whose owner or replica lists it is started: it leaves the mail.
local function mark_started(id, e)
  if call('ZREM', OWNERS, grant_member(id, e)) == 0 then return end
  call('ZADD', OWNERS, 0, owned_member('r', id, e))
  call('ZREM', SLOTS, slot_member('g', id, e))
  call('ZADD', SLOTS, 0, slot_member('r', id, e))
end

local function drop(id, e)
  if e[STATE] == 'f' then free_slot(id, e) else withdraw(id, e) end
  forget(id, e)
end

-- Free what a router without lease holds on replicas that are gone too.
local function drop_orphans(router)
  local freed = 0
  for _, letter in ipairs({'g', 'r'}) do
    for _, member in ipairs(members(OWNERS, router .. '\0' .. letter .. '\0')) do
      local id = split(member)[3]
      local e = get(id)
      if not call('ZSCORE', REPLICAS, e[REPLICA]) then
        drop(id, e)
        freed = freed + 1
      end
    end
  end
  return freed
end

-- End a router's lease; its waiting entries go at `due` (ms).
local function part_router(router, due)
  call('ZREM', ROUTERS, router)
  call('HDEL', BELLS, router)
  call('ZADD', PARTED, due, router)
  router_alive[router] = nil
  return drop_orphans(router)
end

-- Take a parted router's waiting entries out of the line, so that they hide nobody; they keep their place.
local function park(router)
  local list = members(OWNERS, router .. '\0w\0', CHUNK)
  for _, member in ipairs(list) do
    local id = split(member)[4]
    local e = get(id)
    leave_line(id, e)
    e[STATE] = 'p'
    call('ZADD', OWNERS, 0, waiting_member('p', id, e))
    put(id, e)
  end
  return #list
end

local function unpark(router)
  for _, member in ipairs(members(OWNERS, router .. '\0p\0')) do
    local id = split(member)[4]
    call('ZREM', OWNERS, member)
    enter_line(id, get(id))
  end
end

-- Forget entries of a router that hold no slot: waiting, parked, ordered. Returns how many; 0 when none is left.
local function drop_waiting(router)
  local dropped = 0
  for _, letter in ipairs({'w', 'p', 'c', 'e'}) do
    local limit = (letter == 'w' or letter == 'p') and CHUNK or nil
    for _, member in ipairs(members(OWNERS, router .. '\0' .. letter .. '\0', limit)) do
      local parts = split(member)
      local id = parts[#parts]
      local e = get(id)
      if e and e[STATE] ~= 'f' then
        drop(id, e)
        dropped = dropped + 1
      end
    end
  end
  return dropped
end

local function drop_links(router)
  local list = members(LINKS, router .. '\0')
  for _, member in ipairs(list) do call('ZREM', LINKS, member) end
end

-- Remove a replica. Entries of living routers stay: their owners decide.
local function remove_replica(replica)
  local l = get_load(replica)
  if l and l[R_RESERVED] ~= '' then
    local e = get(l[R_RESERVED])
    if e and e[RESERVED] == replica then
      e[RESERVED] = ''
      put(l[R_RESERVED], e)
    end
  end
  loads[replica], replica_alive[replica] = nil, nil
  call('HDEL', LOAD, replica)
  call('HDEL', REGISTRY, replica)
  call('ZREM', FREE, replica)
  local known = call('ZREM', REPLICAS, replica)
  if known == 1 then bump_version() end
  local freed = 0
  for _, letter in ipairs({'g', 'r'}) do
    for _, member in ipairs(members(SLOTS, replica .. '\0' .. letter .. '\0')) do
      local id = split(member)[3]
      local e = get(id)
      if not router_live(e[OWNER]) then
        drop(id, e)
        freed = freed + 1
      end
    end
  end
  return freed
end

-- Apply leases and deadlines that ended. Does nothing while everybody has a lease.
local function reap()
  if LENIENT then return 0 end
  local freed, moved = 0, 0
  for _, router in ipairs(call('ZRANGEBYSCORE', ROUTERS, '-inf', NOW)) do
    local till = tonumber(call('ZSCORE', ROUTERS, router))
    freed = freed + part_router(router, till + GRACE)
  end
  for _, replica in ipairs(call('ZRANGEBYSCORE', REPLICAS, '-inf', NOW)) do freed = freed + remove_replica(replica) end
  for _, router in ipairs(call('ZRANGE', PARTED, 0, -1)) do moved = moved + park(router) end
  for _, router in ipairs(call('ZRANGEBYSCORE', PARTED, '-inf', NOW)) do
    local dropped = drop_waiting(router)
    freed = freed + dropped
    if dropped == 0 then
      call('ZREM', PARTED, router)
      drop_links(router)
    end
  end
  for _, id in ipairs(call('ZRANGEBYSCORE', DEADLINES, '-inf', '(' .. NOW, 'LIMIT', 0, CHUNK)) do
    order(id, get(id), 'e')
    freed = freed + 1
  end
  if freed + moved > 0 then want_free(8) end
  return freed
end

local function live_names(key)
  if LENIENT then return call('ZRANGE', key, 0, -1) end
  return call('ZRANGEBYSCORE', key, '(' .. NOW, '+inf')
end
