-- Shared: the waiting line and the tenants' service counters.
--
-- What a call asks of the line more than once is read once. `enter_line` and `leave_line` keep it true: `in_line`, the
-- number of waiting entries, `by_class`, the same by class, `waiting`, by class whether it has some, `wanted`, by replica
-- whether entries prefer it, `skipping`, whether any entry was passed over, `open`, unsettled charges by class and
-- tenant, `none_free`, whether no replica has room, `floors`, by class the least service as read last, and `pruned`, by
-- class the floor up to which idle tenants were forgotten.

function Q.forget_counts()
  Q.in_line, Q.by_class, Q.waiting, Q.wanted, Q.skipping, Q.open, Q.none_free = nil, {}, nil, {}, nil, {}, nil
  Q.floors, Q.pruned = {}, {}
end

-- Let `run_fills` look at a replica at the end of the script.
function Q.want_fill(replica)
  if not Q.todo_set[replica] then
    Q.todo_set[replica] = true
    Q.todo[#Q.todo + 1] = replica
  end
end

-- Return how many entries wait.
function Q.line_size()
  if not Q.in_line then Q.in_line = call('ZCARD', K[LINE]) end
  return Q.in_line
end

-- Return how many entries of a class wait.
function Q.class_size(class)
  if not Q.by_class[class] then Q.by_class[class] = Q.count(K[LINE], class .. '\0') end
  return Q.by_class[class]
end

-- Count entries that were put into the line, or taken out of it.
function Q.count_in(class, n)
  if Q.in_line then Q.in_line = Q.in_line + n end
  if Q.by_class[class] then Q.by_class[class] = Q.by_class[class] + n end
end

function Q.want_free(n)
  if Q.line_size() == 0 then return end
  for _, replica in ipairs(Q.free_ones(n - 1)) do Q.want_fill(replica) end
end

-- Return the service of the tenant that is next in the line without its estimated charges, or the class's virtual time
-- if no tenant waits; and whether one waits. Estimated charges are left out, because a returning tenant must not be
-- raised to tokens that were never served.
function Q.floor_of(class)
  local head = Q.floors[class]
  if not head then
    head = call('ZRANGE', K[ACTIVE + class], '0', '0', 'WITHSCORES')
    Q.floors[class] = head
  end
  if not head[1] then return P[P_V + class], false end
  local field = class .. '\0' .. head[1]
  if not Q.open[field] then Q.open[field] = tonumber(call('HGET', K[OUTSTANDING], field)) or 0 end
  return tonumber(head[2]) - Q.open[field] / 1000, true
end

-- Add an entry's estimated charge to its tenant's unsettled charges (sign 1), or take it off (sign -1).
function Q.note_estimate(e, sign)
  if e[CHARGED] <= 0 then return end
  local field = e[CLASS] .. '\0' .. e[TENANT]
  local amount = math.floor(e[CHARGED] / e[WEIGHT] * 1000 + 0.5)
  local left = call('HINCRBY', K[OUTSTANDING], field, sign * amount)
  Q.open[field] = math.max(0, left)
  -- `turn` removes those that are left at 0 at its end, all with one command.
  if left < 0 or left == 0 and not Q.goes_on then
    call('HDEL', K[OUTSTANDING], field)
    left = 1
  end
  Q.emptied[field] = left == 0 or nil
end

-- Forget idle tenants whose service the floor has reached.
function Q.prune_idle(class, floor)
  if Q.pruned[class] == floor then return end
  call('ZREMRANGEBYSCORE', K[IDLE + class], '-inf', floor)
  Q.pruned[class] = floor
end

function Q.put_idle(class, tenant, score)
  call('ZADD', K[IDLE + class], score, tenant)
  if Q.pruned[class] and score <= Q.pruned[class] then Q.pruned[class] = nil end
end

-- Add weighted tokens to a tenant's service. A tenant that is not in the line and not above the floor counts as if it
-- were at the floor, so forgetting it changes nothing; a settlement does so. At a grant the virtual time follows the least
-- service.
function Q.serve(class, tenant, amount, at_grant)
  local function charge_in_line()
    if amount ~= 0 then
      local service = call('ZADD', K[ACTIVE + class], 'XX', 'INCR', amount, tenant)
      if service then Q.floors[class] = nil end
      return service
    end
    return call('ZSCORE', K[ACTIVE + class], tenant)
  end
  if not at_grant and Q.line_size() > 0 and charge_in_line() then return end
  local floor, any = Q.floor_of(class)
  if at_grant and any and charge_in_line() then
    if floor > P[P_V + class] then Q.set(P_V + class, floor) end
    return
  end
  local idle = tonumber(call('ZSCORE', K[IDLE + class], tenant))
  local score = idle and idle > floor and idle or floor
  if at_grant then
    local v = any and floor or score
    if v > P[P_V + class] then Q.set(P_V + class, v) end
    if not any then floor = P[P_V + class] end
  end
  score = score + amount
  if score > floor then
    Q.put_idle(class, tenant, score)
  elseif idle then
    call('ZREM', K[IDLE + class], tenant)
  end
  if not at_grant then Q.prune_idle(class, floor) end
end

function Q.tenant_prefix(e) return e[CLASS] .. '\0' .. e[TENANT] .. '\0' end
function Q.line_member(id, e) return e[CLASS] .. '\0' .. e[TENANT] .. '\0' .. e[PLACE] .. '\0' .. id end

function Q.count_preferences(e, by)
  if e[PREFERRED] == '' then return end
  for replica in string.gmatch(e[PREFERRED], '[^%z]+') do
    Q.wanted[replica] = nil
    if call('HINCRBY', K[PREFS], replica, by) <= 0 then call('HDEL', K[PREFS], replica) end
  end
end

function Q.next_place(at_head)
  P[P_TIME] = Q.now
  if at_head then
    Q.set(P_HEAD, P[P_HEAD] - 1)
    return string.format('%016.0f', P[P_HEAD])
  end
  Q.set(P_TAIL, P[P_TAIL] + 1)
  return string.format('%016.0f', P[P_TAIL] - 1)
end

-- Give a router that is unknown, or retired, a lease that starts now, so that `reap` removes what it leaves behind.
function Q.know_router(router)
  if Q.router_live(router) or call('ZSCORE', K[ROUTERS], router) or call('ZSCORE', K[PARTED], router) then return end
  call('ZADD', K[ROUTERS], Q.now + Q.lease, router)
  Q.router_alive[router] = nil
end

-- Tell the old router that the new one has an entry now, unless the old one is gone.
function Q.tell_moved(id, from, to)
  call('ZREM', K[OWNERS], to .. '\0d\0' .. id)
  if not call('ZSCORE', K[ROUTERS], from) then return end
  call('ZADD', K[OWNERS], 0, from .. '\0d\0' .. id)
  Q.ring(from)
end

-- Put an entry into the line at its place. A returning tenant's service is raised to the floor.
function Q.enter_line(id, e)
  local class, tenant = e[CLASS], e[TENANT]
  if not call('ZSCORE', K[ACTIVE + class], tenant) then
    local floor = Q.floor_of(class)
    local score = tonumber(call('ZSCORE', K[IDLE + class], tenant))
    if not score or score < floor then score = floor end
    call('ZADD', K[ACTIVE + class], score, tenant)
    call('ZREM', K[IDLE + class], tenant)
    Q.floors[class] = nil
    if Q.waiting then Q.waiting[class] = true end
  end
  e[STATE] = 'w'
  Q.count_in(class, call('ZADD', K[LINE], '0', Q.line_member(id, e)))
  call('ZADD', K[OWNERS], '0', Q.waiting_member('w', id, e))
  Q.count_preferences(e, 1)
  if e[START_BY] > 0 then call('ZADD', K[DEADLINES], e[START_BY], id) end
  Q.put(id, e)
end

function Q.is_late(e) return tonumber(e[PLACE]) >= LATE_FROM end

-- Return the oldest late entry of a tenant, or nil.
function Q.late_head(class, tenant)
  if not P[P_LATE] or P[P_LATE] == 0 then return nil end
  local prefix = class .. '\0' .. tenant .. '\0'
  local member = call('ZRANGEBYLEX', K[LINE], '[' .. prefix .. string.format('%016.0f', LATE_FROM),
    '(' .. class .. '\0' .. tenant .. '\1', 'LIMIT', '0', '1')[1]
  return member and Q.split(member)[4]
end

-- Whether any waiting entry was passed over.
function Q.any_skips()
  if Q.skipping == nil then Q.skipping = call('EXISTS', K[SKIPS]) == 1 end
  return Q.skipping
end

-- Note that an entry, or the late entries of a tenant, were passed over once more.
function Q.skip(field)
  call('HINCRBY', K[SKIPS], field, '1')
  Q.skipping = true
end

function Q.skips_of(field) return Q.any_skips() and tonumber(call('HGET', K[SKIPS], field)) or 0 end

-- Return how often a tenant's late entries were passed by its others since one of them was last granted.
function Q.late_skips(class, tenant) return Q.skips_of(class .. '\0' .. tenant) end

-- Return how many late entries this call may move behind the others. The number depends on the time since the last
-- move: with a fixed one a long line of late entries would slow every call.
function Q.most_to_fall()
  if not Q.may_fall then
    Q.may_fall = math.min(LATE_PER_CALL, LATE_LEAST + LATE_PER_MS * math.max(0, Q.now - (P[P_LATE] or 0)))
  end
  return Q.may_fall
end

-- Whether a waiting entry has become late and this call may still move it.
function Q.may_fall_behind(e)
  local at = e[LATE_AT] or 0
  return at > 0 and Q.now >= at and not Q.is_late(e) and Q.fell_behind < Q.most_to_fall()
end

-- Move waiting entries of a tenant that have become late behind its others: those of a page of its line from `first` on,
-- up to one that stays. Return how many were moved. Each command is for all of them: with some for each entry, a line
-- that is late as a whole would cost its calls several times as much.
function Q.fall_behind(page, first)
  local ids, unread, left, joined, not_owned, owned, records = {}, {}, {}, {}, {}, {}, {}
  for i = first, math.min(#page, first + Q.most_to_fall() - Q.fell_behind) do
    ids[#ids + 1] = Q.split(page[i])[4]
    if not Q.entries[ids[#ids]] then unread[#unread + 1] = ids[#ids] end
  end
  Q.read_many(K[ENTRIES], unread, function(id, packed) Q.entries[id] = packed and cmsgpack.unpack(packed) or nil end)
  local moved = 0
  for _, id in ipairs(ids) do
    local e = Q.get(id)
    if not Q.may_fall_behind(e) then break end
    Q.fell_behind, moved = Q.fell_behind + 1, moved + 1
    left[#left + 1], not_owned[#not_owned + 1] = Q.line_member(id, e), Q.waiting_member('w', id, e)
    e[PLACE] = string.format('%016.0f', tonumber(e[PLACE]) + LATE_SHIFT)
    joined[#joined + 1], joined[#joined + 2] = '0', Q.line_member(id, e)
    owned[#owned + 1], owned[#owned + 2] = '0', Q.waiting_member('w', id, e)
    records[#records + 1], records[#records + 2] = id, cmsgpack.pack(e)
  end
  if moved == 0 then return 0 end
  if not P[P_MARKS] then Q.set(P_MARKS, 0) end -- a packed array must have no holes
  Q.set(P_LATE, Q.now)
  Q.for_all('ZREM', K[LINE], left)
  Q.for_all('ZREM', K[OWNERS], not_owned)
  Q.for_all('ZADD', K[LINE], joined)
  Q.for_all('ZADD', K[OWNERS], owned)
  for i = #ids, moved + 1, -1 do ids[i] = nil end
  Q.for_all('HDEL', K[SKIPS], ids)
  Q.for_all('HSET', K[ENTRIES], records)
  return moved
end

function Q.drop_reservation(id, e)
  local replica = e[RESERVED]
  if replica == '' then return end
  e[RESERVED] = ''
  local l = Q.get_load(replica)
  if l and l[R_RESERVED] == id then
    l[R_RESERVED] = ''
    Q.put_load(replica, l)
    Q.want_fill(replica)
  end
end

-- Take an entry out of the line. The caller sets its next state and stores it.
function Q.leave_line(id, e)
  local class, tenant = e[CLASS], e[TENANT]
  Q.count_in(class, -call('ZREM', K[LINE], Q.line_member(id, e)))
  call('ZREM', K[OWNERS], Q.waiting_member('w', id, e))
  if Q.any_skips() then call('HDEL', K[SKIPS], id) end
  Q.count_preferences(e, -1)
  if e[START_BY] > 0 then call('ZREM', K[DEADLINES], id) end
  Q.drop_reservation(id, e)
  if Q.is_late(e) and not Q.late_head(class, tenant) then call('HDEL', K[SKIPS], class .. '\0' .. tenant) end
  if #Q.members(K[LINE], Q.tenant_prefix(e), '1') == 0 then
    local score = tonumber(call('ZSCORE', K[ACTIVE + class], tenant))
    call('ZREM', K[ACTIVE + class], tenant)
    Q.floors[class] = nil
    if Q.waiting then Q.waiting[class] = call('ZCARD', K[ACTIVE + class]) > 0 end
    local floor = Q.floor_of(class)
    if score > floor then Q.put_idle(class, tenant, score) end
    Q.prune_idle(class, floor)
  end
end

-- Estimate the number of waiting entries ahead, in O(log n); exact if only one tenant of the class waits. `counts`:
-- counts that entries share, for calls that ask for many.
function Q.position(id, e, counts)
  if e[STATE] ~= 'w' then return 0 end
  local class, prefix = e[CLASS], Q.tenant_prefix(e)
  local ahead = 0
  for urgent = 0, class - 1 do ahead = ahead + Q.class_size(urgent) end
  local mine = call('ZLEXCOUNT', K[LINE], '[' .. prefix, '(' .. Q.line_member(id, e))
  local tenants = counts[class] or call('ZCARD', K[ACTIVE + class])
  counts[class] = tenants
  if tenants == 1 then return ahead + mine end
  counts[prefix] = counts[prefix] or Q.count(K[LINE], prefix)
  local others = Q.class_size(class) - counts[prefix]
  local rounds = call('ZRANK', K[ACTIVE + class], e[TENANT]) + mine * (tenants - 1)
  return ahead + mine + math.min(others, rounds)
end
