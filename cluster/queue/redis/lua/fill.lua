-- Shared: slots. `fill` and `grant` are the only code that grants.

function Q.fits(l, e)
  return l[HELD] + l[EXTRA] < l[W_SEQUENCES] and l[USED_KV] + e[KV] <= l[W_KV]
    -- A prefill larger than the window starts when it is alone.
    and (l[USED_PREFILL] == 0 or l[USED_PREFILL] + e[PROMPT] <= l[W_PREFILL])
end

-- Whether class BATCH has all the slots that the replica leaves it. A load of an older version has no such bound.
function Q.batch_full(l) return l[W_BATCH] and l[W_BATCH] >= 0 and l[HELD_BATCH] >= l[W_BATCH] end

function Q.count_batch(l, e, by)
  if e[CLASS] == 2 and l[W_BATCH] then l[HELD_BATCH] = math.max(0, l[HELD_BATCH] + by) end
end

-- Whether a router has a link to a replica. Remembered, because many entries belong to few routers.
function Q.linked(router, replica)
  local known = Q.links[replica]
  if not known then
    known = {}
    Q.links[replica] = known
  end
  if known[router] == nil then known[router] = call('ZSCORE', K[LINKS], router .. '\0' .. replica) and true or false end
  return known[router]
end

-- Whether an entry could be granted on this replica now if there were room.
function Q.suits(replica, l, e)
  return e[STATE] == 'w' and (e[START_BY] == 0 or Q.now <= e[START_BY]) and e[KV] <= l[W_KV]
    and Q.router_live(e[OWNER]) and Q.linked(e[OWNER], replica)
end

function Q.takes_grants(replica, l)
  return l and l[R_STATE] == 'ready' and l[CLOSED] == 0 and l[HELD] + l[EXTRA] < l[W_SEQUENCES]
    and Q.replica_live(replica)
end

-- Count served tokens per class while classes compete. A class without waiting entries, or batch work that relief makes
-- give way, neither saves nor owes. A class that another reason kept below its share is owed a bounded number of
-- tokens: otherwise it would get every grant for a long time. What a class gets while no other waits pays what it is
-- owed: with all slots in its hands it must not have the next ones first, and keep its work from giving way.
-- `again`: tokens of an attempt that its entry is not charged for, because it goes on from an earlier one. It serves the
-- class all the same: what gave way would otherwise come back for nothing before those that it gave way for.
function Q.account(e, tokens, again, waiting)
  local class, competing, competes = e[CLASS], 0, {}
  for other = 0, 2 do
    competes[other] = waiting[other] and not (other == 2 and Q.batch_yields())
    if competes[other] then competing = competing + 1 end
  end
  tokens = tokens + again
  if competing < 2 then
    local owed = Q.share(class) * P[P_SERVED] - P[P_S + class]
    if owed > 0 then Q.set(P_S + class, P[P_S + class] + math.min(owed, tokens)) end
    return
  end
  if e[COUNTED] >= 1 then
    e[COUNTED] = e[COUNTED] + again
  else
    -- A resume is charged nothing, so its settlement adds what it really gets.
    e[COUNTED] = 1 + (e[CHARGED] == 0 and again or 0)
  end
  Q.set(P_SERVED, P[P_SERVED] + tokens)
  Q.set(P_S + class, P[P_S + class] + tokens)
  for other = 0, 2 do if not competes[other] then Q.set(P_S + other, Q.share(other) * P[P_SERVED]) end end
  local least = Q.share(class) * P[P_SERVED] - OWED_GRANTS * math.max(OWED_LEAST, tokens)
  if P[P_S + class] < least then Q.set(P_S + class, least) end
end

function Q.grant(id, e, replica, l, waiting)
  local tokens, again = 0, e[EXPECTED]
  if e[CHARGED] < 0 then
    if e[RESUME] == 0 then tokens, again = e[PROMPT] + e[EXPECTED], 0 end
    e[CHARGED] = tokens
    Q.note_estimate(e, 1)
  end
  if waiting then Q.account(e, tokens, again, waiting) end
  Q.serve(e[CLASS], e[TENANT], tokens / e[WEIGHT], true)
  if e[STATE] == 'w' then
    if Q.is_late(e) then call('HDEL', K[SKIPS], e[CLASS] .. '\0' .. e[TENANT]) end
    Q.leave_line(id, e)
  end
  Q.granted = Q.granted + 1
  Q.set(P_GRANTED + e[CLASS], P[P_GRANTED + e[CLASS]] + 1)
  e[NUMBER] = e[NUMBER] + 1
  e[ATTEMPT] = e[BASE] .. '.' .. e[NUMBER]
  e[REPLICA], e[STATE], e[GRANTED], e[BEATS], e[PREFILLED] = replica, 'f', Q.now, 0, 0
  Q.put(id, e)
  call('ZADD', K[OWNERS], '0', Q.grant_member(id, e))
  call('ZADD', K[SLOTS], '0', Q.slot_member('g', id, e))
  l[HELD] = l[HELD] + 1
  Q.count_batch(l, e, 1)
  l[USED_KV] = l[USED_KV] + e[KV]
  l[USED_PREFILL] = l[USED_PREFILL] + e[PROMPT]
  Q.put_load(replica, l)
  if Q.caused and e[OWNER] == A[1] then
    Q.caused[#Q.caused + 1] = {id, e[ATTEMPT], replica}
  else
    Q.ring(e[OWNER])
  end
end

-- Return by class whether it has waiting entries.
function Q.waiting_classes()
  if not Q.waiting then
    Q.waiting = {[0] = call('ZCARD', K[ACTIVE]) > 0, call('ZCARD', K[ACTIVE + 1]) > 0, call('ZCARD', K[ACTIVE + 2]) > 0}
  end
  return Q.waiting
end

-- Return the classes in order of service on a replica: those below their reserved share, then by urgency. Batch work
-- that has all its slots there waits, unless it is below its share.
function Q.class_order(waiting, l)
  local order, rest = {}, {}
  for class = 0, 2 do
    if waiting[class] then
      local below = Q.share(class) > 0 and P[P_S + class] < Q.share(class) * P[P_SERVED]
      if below and class == 2 and Q.batch_yields() then below = false end
      if below or class ~= 2 or not Q.batch_full(l) then
        local list = below and order or rest
        list[#list + 1] = class
      end
    end
  end
  for _, class in ipairs(rest) do order[#order + 1] = class end
  return order
end

-- Whether an entry must not be passed over any more. A tenant's late entries count together: the first of them may not
-- suit this replica.
function Q.is_worn(id, e)
  return Q.skips_of(id) >= Q.lookahead or (Q.is_late(e) and Q.late_skips(e[CLASS], e[TENANT]) >= Q.lookahead)
end

-- Return an iterator over one class in fair order: the tenant of least service first, charged for what it would get.
-- The first entry costs two reads; further tenants are read as their turn comes. A tenant's late entries come after its
-- others: they have missed their SLO already, and in front of the line they would make the others miss it too. But once
-- they were passed over `lookahead` times the oldest of them come first.
function Q.class_candidates(class, raw_limit)
  local tenants, page_size, last, more = {}, 1, 0, true -- last: least service that an unread tenant may have
  local function load_tenants()
    local from = #tenants
    local page = call('ZRANGE', K[ACTIVE + class], from, math.min(from + page_size, raw_limit) - 1, 'WITHSCORES')
    for i = 1, #page, 2 do
      last = tonumber(page[i + 1])
      tenants[#tenants + 1] = {page[i], last, {}, 0, 0, nil, {}}
    end
    more = #tenants == from + page_size and #tenants < raw_limit
    page_size = Q.lookahead
  end
  -- `tenant`: 1 name, 2 service, 3 page of members, nil at the end, 4 offset of the page, 5 members taken of the page,
  -- 6 late entries that come first, nil before they are read, 7 set of the ids of those that were returned.
  local function read_page(tenant, size)
    tenant[3] = call('ZRANGEBYLEX', K[LINE], '[' .. class .. '\0' .. tenant[1] .. '\0',
      '(' .. class .. '\0' .. tenant[1] .. '\1', 'LIMIT', tenant[4], size)
    tenant[5] = 0
  end
  local function pull(tenant)
    local prefix = class .. '\0' .. tenant[1] .. '\0'
    if not tenant[6] then
      tenant[6] = {}
      if P[P_LATE] and P[P_LATE] > 0 and Q.late_skips(class, tenant[1]) >= Q.lookahead then
        tenant[6] = call('ZRANGEBYLEX', K[LINE], '[' .. prefix .. string.format('%016.0f', LATE_FROM),
          '(' .. class .. '\0' .. tenant[1] .. '\1', 'LIMIT', 0, Q.lookahead)
      end
    end
    if tenant[6][1] then
      local id = Q.split(table.remove(tenant[6], 1))[4]
      tenant[7][id] = true
      return id
    end
    while true do
      if tenant[5] == #tenant[3] then
        local size = #tenant[3] == 0 and 1 or Q.lookahead
        tenant[4] = tenant[4] + #tenant[3]
        read_page(tenant, size)
        if #tenant[3] == 0 then return nil end
      end
      local id = Q.split(tenant[3][tenant[5] + 1])[4]
      local falls = Q.may_fall_behind(Q.get(id))
      -- Those behind one that became late are mostly late too.
      if falls and #tenant[3] == 1 then read_page(tenant, Q.lookahead) end
      tenant[5] = tenant[5] + 1
      if falls then
        local moved = Q.fall_behind(tenant[3], tenant[5])
        tenant[4], tenant[5] = tenant[4] - moved, tenant[5] + moved - 1 -- the entries behind them have moved up
        -- If the page reaches the late entries it may be on it a second time.
        if tonumber(Q.split(tenant[3][#tenant[3]])[3]) >= LATE_FROM then
          for at = #tenant[3], tenant[5] + 1, -1 do tenant[3][at] = nil end
        end
      elseif not tenant[7][id] then
        return id
      end
    end
  end
  return function()
    while true do
      local best
      for _, tenant in ipairs(tenants) do
        if tenant[3] and (not best or tenant[2] < best[2]) then best = tenant end
      end
      if more and (not best or best[2] > last) then
        load_tenants()
      elseif not best then
        return nil
      else
        local id = pull(best)
        if id then return id, best end
        best[3] = nil
      end
    end
  end
end

-- Return entries of the routers that reach a replica, in fair order: the oldest and the newest of each router, together
-- `lookahead` oldest and `lookahead` newest. For a replica that can't take any entry at the front of the line, mostly
-- because their router does not reach it: entries behind these would wait for ever. Only a part of the line is read,
-- because it may be long and no index knows links. The oldest, so that each has its turn; the newest, because these are
-- the urgent ones if others have piled up. `known`: ids to leave out.
function Q.reachable(replica, order, known)
  local routers, rank, found = {}, {}, {}
  for _, router in ipairs(Q.live_names(K[ROUTERS])) do
    if #routers < 2 * Q.lookahead and Q.linked(router, replica) then routers[#routers + 1] = router end
  end
  local each = math.max(1, math.floor(Q.lookahead / #routers))
  for at, class in ipairs(order) do rank[class] = at end
  local function add(members)
    for _, member in ipairs(members) do
      local id = Q.split(member)[4]
      local e = Q.get(id)
      if not known[id] and rank[e[CLASS]] then found[#found + 1] = {id, rank[e[CLASS]], 0, tonumber(e[PLACE]), e} end
      known[id] = true
    end
  end
  for _, router in ipairs(routers) do
    local prefix = router .. '\0w\0'
    add(Q.members(K[OWNERS], prefix, each))
    add(call('ZREVRANGEBYLEX', K[OWNERS], '(' .. prefix .. string.format('%016.0f', LATE_FROM), '[' .. prefix,
      'LIMIT', 0, each))
  end
  -- An entry counts with the service of its tenant plus the cost of the tenant's entries before it.
  table.sort(found, function(a, b) return a[4] < b[4] end)
  local service = {}
  for _, entry in ipairs(found) do
    local e = entry[5]
    local line = Q.tenant_prefix(e)
    entry[3] = service[line] or tonumber(call('ZSCORE', K[ACTIVE + e[CLASS]], e[TENANT]))
    service[line] = entry[3] + (e[PROMPT] + e[EXPECTED]) / e[WEIGHT]
  end
  table.sort(found, function(a, b)
    if a[2] ~= b[2] then return a[2] < b[2] end
    if a[3] ~= b[3] then return a[3] < b[3] end
    return a[4] < b[4]
  end)
  local ids = {}
  for at, entry in ipairs(found) do ids[at] = entry[1] end
  return ids
end

-- Choose the entry that this replica takes next: the first of `lookahead` candidates that prefers it, else the first
-- that fits. An entry that was passed over `lookahead` times is passed no more. If it needs more than what is free, it
-- reserves the replica. If the first 8 x `lookahead` entries of the line can't run here, entries of routers that reach
-- the replica come next. They are found once per call and replica, for at most WALLS_PER_CALL replicas in a call. For
-- WALL_MS after that `choose` looks at the first `lookahead` entries only.
function Q.choose(replica, l, waiting)
  local beyond = Q.beyond[replica]
  if not beyond and Q.walls >= WALLS_PER_CALL then return nil end
  if Q.wanted[replica] == nil then Q.wanted[replica] = call('HEXISTS', K[PREFS], replica) == 1 end
  local wanted = Q.wanted[replica]
  local passed, fallback, fallback_at = {}, nil, 0
  local walled = l[WALLED] and Q.now < l[WALLED]
  local seen, raw, raw_limit = 0, 0, walled and Q.lookahead or 8 * Q.lookahead
  local mark = '\0' .. replica .. '\0'
  local function take(id, ahead)
    for i = 1, ahead do Q.skip(passed[i]) end
    local e = Q.get(id)
    if not Q.is_late(e) and Q.late_head(e[CLASS], e[TENANT]) then
      Q.skip(e[CLASS] .. '\0' .. e[TENANT])
    end
    return id
  end
  local order, class, met, at, nobody = Q.class_order(waiting, l), 1, {}, 0, {0, 0}
  local following = order[1] and Q.class_candidates(order[1], raw_limit)
  while following and seen < Q.lookahead do
    local id, tenant = nil, nobody
    if not beyond and raw >= raw_limit then
      if fallback then break end
      Q.walls = Q.walls + 1
      beyond = Q.reachable(replica, order, met)
      Q.beyond[replica] = beyond
      if not walled and l[W_BATCH] then
        l[WALLED] = Q.now + WALL_MS
        Q.put_load(replica, l)
      end
    end
    if beyond then
      at = at + 1
      id = beyond[at]
      if not id then break end
    else
      id, tenant = following()
      if id then
        raw = raw + 1
      else
        class = class + 1
        following = order[class] and Q.class_candidates(order[class], raw_limit)
      end
    end
    local e = id and Q.get(id)
    if not e then
      -- The class has no more entries: the loop goes on with the next class.
    elseif fallback and Q.is_late(e) and not Q.is_late(Q.get(fallback)) and not Q.is_worn(id, e) then
      -- A late entry's preference does not count against an entry in time. All further ones of its tenant are late too.
      tenant[3] = nil
    elseif Q.suits(replica, l, e) and (not beyond or Q.among(order, e[CLASS])) then
      seen = seen + 1
      met[id] = true
      tenant[2] = tenant[2] + (e[PROMPT] + e[EXPECTED]) / e[WEIGHT]
      if Q.fits(l, e) then
        if not wanted or string.find(e[PREFERRED], mark, 1, true) then return take(id, #passed) end
        if not fallback then fallback, fallback_at = id, #passed end
        if Q.is_worn(id, e) then return take(fallback, fallback_at) end
        passed[#passed + 1] = id
      elseif e[RESERVED] == '' then
        if Q.is_worn(id, e) then
          if fallback then return take(fallback, fallback_at) end
          e[RESERVED] = replica
          Q.put(id, e)
          l[R_RESERVED] = id
          Q.put_load(replica, l)
          return nil
        end
        passed[#passed + 1] = id
      end
    end
  end
  if fallback then return take(fallback, fallback_at) end
  return nil
end

function Q.among(list, item)
  for _, other in ipairs(list) do if other == item then return true end end
  return false
end

-- Grant up to `limit` entries on a replica.
function Q.fill(replica, limit)
  local l = Q.get_load(replica)
  for _ = 1, limit do
    if Q.line_size() == 0 or not Q.takes_grants(replica, l) then return end
    local waiting = Q.waiting_classes()
    local id = l[R_RESERVED]
    if id ~= '' then
      local e = Q.get(id)
      if e and e[RESERVED] == replica and Q.suits(replica, l, e) and not (e[CLASS] == 2 and Q.batch_full(l)) then
        if not Q.fits(l, e) then return end
      else
        if e and e[RESERVED] == replica then
          e[RESERVED] = ''
          Q.put(id, e)
        end
        l[R_RESERVED] = ''
        Q.put_load(replica, l)
        id = nil
      end
    else
      id = nil
    end
    id = id or Q.choose(replica, l, waiting)
    if not id then return end
    Q.grant(id, Q.get(id), replica, l, waiting)
  end
end

function Q.run_fills()
  local i = 1
  while i <= #Q.todo and Q.granted < GRANTS_PER_CALL do
    Q.todo_set[Q.todo[i]] = nil
    Q.fill(Q.todo[i], GRANTS_PER_REPLICA)
    i = i + 1
  end
end

-- Offer `use` each replica where an entry may start now: those that it prefers, then the least loaded. `use` returns
-- true to stop.
function Q.find_room(id, e, use)
  local function try(replica)
    local l = Q.get_load(replica)
    return Q.takes_grants(replica, l) and (l[R_RESERVED] == '' or l[R_RESERVED] == id)
      and Q.suits(replica, l, e) and Q.fits(l, e) and not (e[CLASS] == 2 and Q.batch_full(l)) and use(replica, l)
  end
  for replica in string.gmatch(e[PREFERRED], '[^%z]+') do
    if try(replica) then return end
  end
  -- Mostly the first one takes it.
  local first = Q.free_ones('0')[1]
  if not first or try(first) then return end
  for _, replica in ipairs(Q.free_ones(REPLICAS_TRIED - 1)) do
    if replica ~= first and try(replica) then return end
  end
end

-- Grant a waiting entry at once if its turn allows it.
function Q.place(id, e)
  local tries = 0
  Q.find_room(id, e, function(replica)
    Q.fill(replica, 1)
    tries = tries + 1
    return e[STATE] ~= 'w' or tries == 4
  end)
end

-- Free the slot of an entry in flight. `run_fills` looks at its replica.
function Q.free_slot(id, e)
  call('ZREM', K[OWNERS], Q.grant_member(id, e), Q.owned_member('r', id, e))
  call('ZREM', K[SLOTS], Q.slot_member('g', id, e), Q.slot_member('r', id, e))
  if e[ORDER] == 'f' then Q.clear_order(id, e) end
  local l = Q.get_load(e[REPLICA])
  if l then
    l[HELD] = math.max(0, l[HELD] - 1)
    Q.count_batch(l, e, -1)
    l[USED_KV] = math.max(0, l[USED_KV] - e[KV])
    if e[PREFILLED] == 0 then l[USED_PREFILL] = math.max(0, l[USED_PREFILL] - e[PROMPT]) end
    Q.put_load(e[REPLICA], l)
    Q.want_fill(e[REPLICA])
  end
  e[REPLICA] = ''
end

function Q.clear_order(id, e)
  call('ZREM', K[OWNERS], Q.owned_member(e[ORDER], id, e))
  if e[ORDER] == 'f' then Q.set(P_YIELDING, P[P_YIELDING] - 1) end
  e[ORDER] = ''
end

-- Remove an entry that is neither in the line nor in a slot. With the last entry the counters are reset. `ended`: its
-- owner says that it is over, so its client key waits for the result.
function Q.forget(id, e, ended)
  Q.entries[id] = nil
  call('HDEL', K[ENTRIES], id)
  if e[ORDER] ~= '' then Q.clear_order(id, e) end
  if e[CLIENT_KEY] ~= '' then Q.close_key(id, e, ended) end
  Q.leave_tenant(e)
  Q.note_estimate(e, -1)
  if (Q.in_line or 0) == 0 and call('HLEN', K[ENTRIES]) == 0 then
    call('DEL', K[IDLE + 0], K[IDLE + 1], K[IDLE + 2])
    Q.pruned = {}
    for class = 0, 2 do
      Q.set(P_V + class, 0)
      Q.set(P_S + class, 0)
    end
    Q.set(P_SERVED, 0)
    if P[P_LATE] then Q.set(P_LATE, 0) end
  end
end

-- Take a waiting or parked entry out of the line or its parking place.
function Q.withdraw(id, e)
  if e[STATE] == 'w' then
    Q.leave_line(id, e)
  elseif e[STATE] == 'p' then
    call('ZREM', K[OWNERS], Q.waiting_member('p', id, e))
  end
end

-- Order the owner of an entry to end it: "c" cancel, "e" expired. A waiting entry leaves the line. "f" orders an entry
-- in flight to give way; a later "c" or "e" replaces it.
function Q.order(id, e, kind)
  if e[ORDER] == 'f' and kind ~= 'f' then Q.clear_order(id, e) end
  if e[ORDER] ~= '' then return end
  if e[STATE] ~= 'f' then
    Q.withdraw(id, e)
    e[STATE] = 'o'
  end
  e[ORDER] = kind
  if kind == 'f' then Q.set(P_YIELDING, P[P_YIELDING] + 1) end
  call('ZADD', K[OWNERS], 0, Q.owned_member(kind, id, e))
  Q.put(id, e)
  Q.ring(e[OWNER])
end

-- Move an entry from its slot back to the head of its tenant's list.
function Q.give_back(id, e)
  Q.know_router(e[OWNER]) -- it may have retired while this call was on its way
  Q.free_slot(id, e) -- fulfils an order to give way, and removes it
  if e[ORDER] ~= '' then
    e[STATE] = 'o'
    Q.put(id, e)
    return
  end
  e[PLACE] = Q.next_place(true)
  Q.enter_line(id, e)
end
