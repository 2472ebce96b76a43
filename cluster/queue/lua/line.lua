-- Shared: the waiting line and the tenants' service counters.

local V = {[0] = 'v0', 'v1', 'v2'}
local S = {[0] = 's0', 's1', 's2'}
local todo, todo_set = {}, {}

-- Have run_fills look at a replica at the end of the script.
local function want_fill(replica)
  if not todo_set[replica] then
    todo_set[replica] = true
    todo[#todo + 1] = replica
  end
end

local function want_free(n)
  if call('ZCARD', LINE) == 0 then return end
  for _, replica in ipairs(call('ZRANGE', FREE, 0, n - 1)) do want_fill(replica) end
end

-- The least service of a tenant in the line; without one, the class's virtual time. Second: whether there is one.
local function floor_of(class)
  local head = call('ZRANGE', ACTIVE[class], 0, 0, 'WITHSCORES')
  if head[1] then return tonumber(head[2]), true end
  return P[V[class]], false
end

-- Add weighted tokens to a tenant's service. A tenant that is not in the line and not above the floor counts as being at
-- the floor, so forgetting it changes nothing. At a grant the virtual time follows the least service.
local function serve(class, tenant, amount, at_grant)
  local floor, any = floor_of(class)
  if call('ZSCORE', ACTIVE[class], tenant) then
    if at_grant and floor > P[V[class]] then set(V[class], floor) end
    if amount ~= 0 then call('ZINCRBY', ACTIVE[class], amount, tenant) end
    return
  end
  local score = tonumber(call('ZSCORE', IDLE[class], tenant))
  if not score or score < floor then score = floor end
  if at_grant then
    local v = any and floor or score
    if v > P[V[class]] then set(V[class], v) end
    if not any then floor = P[V[class]] end
  end
  score = score + amount
  if score > floor then call('ZADD', IDLE[class], score, tenant) else call('ZREM', IDLE[class], tenant) end
  call('ZREMRANGEBYSCORE', IDLE[class], '-inf', floor)
end

local function tenant_prefix(e) return e[CLASS] .. '\0' .. e[TENANT] .. '\0' end
local function line_member(id, e) return e[CLASS] .. '\0' .. e[TENANT] .. '\0' .. e[PLACE] .. '\0' .. id end

local function count_preferences(e, by)
  if e[PREFERRED] == '' then return end
  for replica in string.gmatch(e[PREFERRED], '[^%z]+') do
    if call('HINCRBY', PREFS, replica, by) <= 0 then call('HDEL', PREFS, replica) end
  end
end

local function next_place(at_head)
  if at_head then
    set('head', P.head - 1)
    return string.format('%016.0f', P.head)
  end
  set('tail', P.tail + 1)
  return string.format('%016.0f', P.tail - 1)
end

-- Put an entry into the line at its place; a returning tenant is lifted to the floor.
local function enter_line(id, e)
  local class, tenant = e[CLASS], e[TENANT]
  if not call('ZSCORE', ACTIVE[class], tenant) then
    local floor = floor_of(class)
    local score = tonumber(call('ZSCORE', IDLE[class], tenant))
    if not score or score < floor then score = floor end
    call('ZADD', ACTIVE[class], score, tenant)
    call('ZREM', IDLE[class], tenant)
  end
  e[STATE] = 'w'
  call('ZADD', LINE, 0, line_member(id, e))
  call('ZADD', OWNERS, 0, waiting_member('w', id, e))
  count_preferences(e, 1)
  if e[START_BY] > 0 then call('ZADD', DEADLINES, e[START_BY], id) end
  put(id, e)
end

local function drop_reservation(id, e)
  local replica = e[RESERVED]
  if replica == '' then return end
  e[RESERVED] = ''
  local l = get_load(replica)
  if l and l[R_RESERVED] == id then
    l[R_RESERVED] = ''
    put_load(replica, l)
    want_fill(replica)
  end
end

-- Take an entry out of the line; the caller gives it its next state and stores it.
local function leave_line(id, e)
  local class, tenant = e[CLASS], e[TENANT]
  call('ZREM', LINE, line_member(id, e))
  call('ZREM', OWNERS, waiting_member('w', id, e))
  call('HDEL', SKIPS, id)
  count_preferences(e, -1)
  if e[START_BY] > 0 then call('ZREM', DEADLINES, id) end
  drop_reservation(id, e)
  if #members(LINE, tenant_prefix(e), 1) == 0 then
    local score = tonumber(call('ZSCORE', ACTIVE[class], tenant))
    call('ZREM', ACTIVE[class], tenant)
    local floor = floor_of(class)
    if score > floor then call('ZADD', IDLE[class], score, tenant) end
    call('ZREMRANGEBYSCORE', IDLE[class], '-inf', floor)
  end
end

-- An estimate of the waiting entries ahead; exact for a single tenant. O(log n).
local function position(id, e)
  if e[STATE] ~= 'w' then return 0 end
  local class, prefix = e[CLASS], tenant_prefix(e)
  local ahead = 0
  for urgent = 0, class - 1 do ahead = ahead + count(LINE, urgent .. '\0') end
  local mine = call('ZLEXCOUNT', LINE, '[' .. prefix, '(' .. line_member(id, e))
  local others = count(LINE, class .. '\0') - count(LINE, prefix)
  local rounds = call('ZRANK', ACTIVE[class], e[TENANT]) + mine * (call('ZCARD', ACTIVE[class]) - 1)
  return ahead + mine + math.min(others, rounds)
end
