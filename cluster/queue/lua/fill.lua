-- Shared: `fill`, the only place that grants.

local caused -- list of {id, attempt, replica} granted to the caller by this call; nil where it is rung like others

local function fits(l, e)
  return l[HELD] + l[EXTRA] < l[W_SEQUENCES] and l[USED_KV] + e[KV] <= l[W_KV]
    -- A prefill larger than the window starts when it is alone.
    and (l[USED_PREFILL] == 0 or l[USED_PREFILL] + e[PROMPT] <= l[W_PREFILL])
end

-- Whether an entry could ever be granted on this replica as things are, room aside.
local function suits(replica, l, e)
  return e[STATE] == 'w' and (e[START_BY] == 0 or NOW <= e[START_BY]) and e[KV] <= l[W_KV]
    and router_live(e[OWNER]) and call('ZSCORE', LINKS, e[OWNER] .. '\0' .. replica) and true or false
end

local function takes_grants(replica, l)
  return l and l[R_STATE] == 'ready' and l[CLOSED] == 0 and l[HELD] + l[EXTRA] < l[W_SEQUENCES] and replica_live(replica)
end

-- Count served tokens per class while classes compete; a class that is away neither saves nor owes.
local function account(e, tokens, waiting)
  local competing = 0
  for class = 0, 2 do if waiting[class] then competing = competing + 1 end end
  if competing < 2 then return end
  e[COUNTED] = 1
  set('st', P.st + tokens)
  set(S[e[CLASS]], P[S[e[CLASS]]] + tokens)
  for class = 0, 2 do if not waiting[class] then set(S[class], SHARE[class] * P.st) end end
end

local function grant(id, e, replica, l, waiting)
  local tokens = 0
  if e[CHARGED] < 0 then
    if e[RESUME] == 0 then tokens = e[PROMPT] + e[EXPECTED] end
    e[CHARGED] = tokens
    if waiting then account(e, tokens, waiting) end
  end
  serve(e[CLASS], e[TENANT], tokens / e[WEIGHT], true)
  if e[STATE] == 'w' then leave_line(id, e) end
  e[NUMBER] = e[NUMBER] + 1
  e[ATTEMPT] = e[BASE] .. '.' .. e[NUMBER]
  e[REPLICA], e[STATE], e[GRANTED], e[BEATS], e[PREFILLED] = replica, 'f', NOW, 0, 0
  put(id, e)
  call('ZADD', OWNERS, 0, grant_member(id, e))
  call('ZADD', SLOTS, 0, slot_member('g', id, e))
  l[HELD] = l[HELD] + 1
  l[USED_KV] = l[USED_KV] + e[KV]
  l[USED_PREFILL] = l[USED_PREFILL] + e[PROMPT]
  put_load(replica, l)
  if caused and e[OWNER] == CALLER then
    caused[#caused + 1] = {id, e[ATTEMPT], replica}
  else
    ring(e[OWNER])
  end
end

local function waiting_classes()
  return {[0] = call('ZCARD', ACTIVE[0]) > 0, call('ZCARD', ACTIVE[1]) > 0, call('ZCARD', ACTIVE[2]) > 0}
end

-- Classes in the order of service: first those below their reserved share, then by urgency.
local function class_order(waiting)
  local order, rest = {}, {}
  for class = 0, 2 do
    if waiting[class] then
      local below = SHARE[class] > 0 and P[S[class]] < SHARE[class] * P.st
      local list = below and order or rest
      list[#list + 1] = class
    end
  end
  for _, class in ipairs(rest) do order[#order + 1] = class end
  return order
end

-- Entries of one class in fair order: the tenant of least service first, charged for what it would get. The first entry
-- costs two reads; only a second one reads the other tenants.
local function class_candidates(class, raw_limit)
  local tenants, known
  local function load_tenants(n)
    local page = call('ZRANGE', ACTIVE[class], 0, n - 1, 'WITHSCORES')
    local list = {}
    for i = 1, #page, 2 do list[#list + 1] = {page[i], tonumber(page[i + 1]), {}, 0, 0} end
    return list
  end
  local function pull(tenant) -- name, service, page of members, offset of the page, taken of the page
    if tenant[5] == #tenant[3] then
      tenant[4] = tenant[4] + #tenant[3]
      local prefix = class .. '\0' .. tenant[1] .. '\0'
      tenant[3] = call('ZRANGEBYLEX', LINE, '[' .. prefix, '(' .. class .. '\0' .. tenant[1] .. '\1',
        'LIMIT', tenant[4], tenant[4] == 0 and 1 or LOOKAHEAD)
      tenant[5] = 0
      if #tenant[3] == 0 then return nil end
    end
    tenant[5] = tenant[5] + 1
    return split(tenant[3][tenant[5]])[4]
  end
  return function()
    if not known then
      tenants, known = load_tenants(1), 1
    elseif known == 1 then
      local first = tenants[1]
      tenants, known = load_tenants(raw_limit), 2
      if first then tenants[1] = first end
    end
    while true do
      local best
      for _, tenant in ipairs(tenants) do
        if tenant[3] and (not best or tenant[2] < best[2]) then best = tenant end
      end
      if not best then return nil end
      local id = pull(best)
      if id then return id, best end
      best[3] = nil
    end
  end
end

local function skips_of(id) return tonumber(call('HGET', SKIPS, id)) or 0 end

-- Choose the entry that this replica takes next: the first of LOOKAHEAD candidates that prefers it, else the first that
-- fits. One that was passed over LOOKAHEAD times is passed no more; too big for what is free, it reserves the replica.
local function choose(replica, l, waiting)
  local wanted = call('HEXISTS', PREFS, replica) == 1
  local passed, fallback, fallback_at = {}, nil, 0
  local seen, raw, raw_limit = 0, 0, 8 * LOOKAHEAD
  local mark = '\0' .. replica .. '\0'
  local function take(id, ahead)
    for i = 1, ahead do call('HINCRBY', SKIPS, passed[i], 1) end
    return id
  end
  for _, class in ipairs(class_order(waiting)) do
    local following = class_candidates(class, raw_limit)
    while seen < LOOKAHEAD and raw < raw_limit do
      local id, tenant = following()
      if not id then break end
      raw = raw + 1
      local e = get(id)
      if suits(replica, l, e) then
        seen = seen + 1
        tenant[2] = tenant[2] + (e[PROMPT] + e[EXPECTED]) / e[WEIGHT]
        if fits(l, e) then
          if not wanted or string.find(e[PREFERRED], mark, 1, true) then return take(id, #passed) end
          if not fallback then fallback, fallback_at = id, #passed end
          if skips_of(id) >= LOOKAHEAD then return take(fallback, fallback_at) end
          passed[#passed + 1] = id
        elseif e[RESERVED] == '' then
          if skips_of(id) >= LOOKAHEAD then
            if fallback then return take(fallback, fallback_at) end
            e[RESERVED] = replica
            put(id, e)
            l[R_RESERVED] = id
            put_load(replica, l)
            return nil
          end
          passed[#passed + 1] = id
        end
      end
    end
  end
  if fallback then return take(fallback, fallback_at) end
  return nil
end

-- Grant up to `limit` entries on a replica.
local function fill(replica, limit)
  local l = get_load(replica)
  for _ = 1, limit do
    if not takes_grants(replica, l) or call('ZCARD', LINE) == 0 then return end
    local waiting = waiting_classes()
    local id = l[R_RESERVED]
    if id ~= '' then
      local e = get(id)
      if e and e[RESERVED] == replica and suits(replica, l, e) then
        if not fits(l, e) then return end
      else
        if e and e[RESERVED] == replica then
          e[RESERVED] = ''
          put(id, e)
        end
        l[R_RESERVED] = ''
        put_load(replica, l)
        id = nil
      end
    else
      id = nil
    end
    id = id or choose(replica, l, waiting)
    if not id then return end
    grant(id, get(id), replica, l, waiting)
  end
end

local function run_fills()
  local i = 1
  while i <= #todo do
    todo_set[todo[i]] = nil
    fill(todo[i], GRANTS_PER_CALL)
    i = i + 1
  end
end

-- Replicas where an entry may start now: those it prefers, then the least loaded; `use` says true to stop.
local function find_room(id, e, use)
  local function try(replica)
    local l = get_load(replica)
    return takes_grants(replica, l) and (l[R_RESERVED] == '' or l[R_RESERVED] == id)
      and suits(replica, l, e) and fits(l, e) and use(replica, l)
  end
  for replica in string.gmatch(e[PREFERRED], '[^%z]+') do
    if try(replica) then return end
  end
  for _, replica in ipairs(call('ZRANGE', FREE, 0, REPLICAS_TRIED - 1)) do
    if try(replica) then return end
  end
end

-- Serve an entry of the line at once where its turn allows it.
local function place(id, e)
  local tries = 0
  find_room(id, e, function(replica)
    fill(replica, 1)
    tries = tries + 1
    return e[STATE] ~= 'w' or tries == 4
  end)
end

-- Free the slot of an entry in flight; its replica is looked at by run_fills.
local function free_slot(id, e)
  call('ZREM', OWNERS, grant_member(id, e), owned_member('r', id, e))
  call('ZREM', SLOTS, slot_member('g', id, e), slot_member('r', id, e))
  local l = get_load(e[REPLICA])
  if l then
    l[HELD] = math.max(0, l[HELD] - 1)
    l[USED_KV] = math.max(0, l[USED_KV] - e[KV])
    if e[PREFILLED] == 0 then l[USED_PREFILL] = math.max(0, l[USED_PREFILL] - e[PROMPT]) end
    put_load(e[REPLICA], l)
    want_fill(e[REPLICA])
  end
  e[REPLICA] = ''
end

-- Remove an entry that is neither in the line nor in a slot. With the last one the counters go too.
local function forget(id, e)
  entries[id] = nil
  call('HDEL', ENTRIES, id)
  if e[ORDER] ~= '' then call('ZREM', OWNERS, owned_member(e[ORDER], id, e)) end
  if e[CLIENT_KEY] ~= '' then
    local field = e[TENANT] .. '\0' .. e[CLIENT_KEY]
    if call('HGET', CLIENT_KEYS, field) == id then call('HDEL', CLIENT_KEYS, field) end
  end
  if call('HLEN', ENTRIES) == 0 then
    call('DEL', IDLE[0], IDLE[1], IDLE[2])
    for class = 0, 2 do
      set(V[class], 0)
      set(S[class], 0)
    end
    set('st', 0)
  end
end

-- Take a waiting or parked entry out of its place.
local function withdraw(id, e)
  if e[STATE] == 'w' then
    leave_line(id, e)
  elseif e[STATE] == 'p' then
    call('ZREM', OWNERS, waiting_member('p', id, e))
  end
end

-- Have the owner of an entry end it: "c" cancel, "e" expired. A waiting one leaves the line.
local function order(id, e, kind)
  if e[ORDER] ~= '' then return end
  if e[STATE] ~= 'f' then
    withdraw(id, e)
    e[STATE] = 'o'
  end
  e[ORDER] = kind
  call('ZADD', OWNERS, 0, owned_member(kind, id, e))
  put(id, e)
  ring(e[OWNER])
end

-- Bring a grant that was not started back to the head of its tenant's list.
local function give_back(id, e)
  free_slot(id, e)
  if e[ORDER] ~= '' then
    e[STATE] = 'o'
    put(id, e)
    return
  end
  e[PLACE] = next_place(true)
  enter_line(id, e)
end
