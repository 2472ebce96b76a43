-- Renew a router's lease, note its links and started grants, revoke grants it never started, reap and fill.
--
-- Needs: common, line, fill, leases. Keys and ARGV: common.lua.
-- A: router, list of connected replicas, flat list of (request id, attempt) started, registry version it has
-- Reply: {mail, replicas or nil, registry version, waiting per class, running, live routers, flat positions, run id};
--        a replica is {id, record, state, windows x3, sequences, KV tokens, prefill tokens, age (ms), stats}

open_pool()
tick()
reads_mail = true
call('ZADD', ROUTERS, NOW + LEASE, CALLER)
if call('ZREM', PARTED, CALLER) == 1 then unpark(CALLER) end

local old = {}
for _, member in ipairs(members(LINKS, CALLER .. '\0')) do old[member] = true end
for _, replica in ipairs(A[2]) do
  local member = CALLER .. '\0' .. replica
  if old[member] then
    old[member] = nil
  else
    call('ZADD', LINKS, 0, member)
    want_fill(replica)
  end
end
for member in pairs(old) do call('ZREM', LINKS, member) end

local started = A[3]
for i = 1, #started, 2 do
  local e = get(started[i])
  if e and e[STATE] == 'f' and e[ATTEMPT] == started[i + 1] and e[OWNER] == CALLER then mark_started(started[i], e) end
end
for _, member in ipairs(members(OWNERS, CALLER .. '\0g\0')) do
  local id = split(member)[3]
  local e = get(id)
  e[BEATS] = e[BEATS] + 1
  if e[BEATS] >= GRANT_HEARTBEATS then give_back(id, e) else put(id, e) end
end
reap()
want_free(8)
run_fills()

local function registry()
  local names = live_names(REPLICAS)
  -- Large registries come back with every change, and for their load once in four seconds.
  if A[4] == P.version and #names > 64 and math.floor(NOW / 1000) % 4 ~= 0 then return false end
  local list = {}
  for _, name in ipairs(names) do
    local l, shown = get_load(name), cmsgpack.unpack(call('HGET', REGISTRY, name))
    list[#list + 1] = {name, shown[1], l[R_STATE], l[W_SEQUENCES], l[W_KV], l[W_PREFILL], l[HELD] + l[EXTRA],
      l[USED_KV], l[USED_PREFILL], NOW - l[BEAT], shown[2]}
  end
  return list
end

local positions = {}
for _, member in ipairs(members(OWNERS, CALLER .. '\0w\0', 256)) do
  local id = split(member)[4]
  positions[#positions + 1] = id
  positions[#positions + 1] = position(id, get(id))
end
local replicas = registry()
close_pool()
return {mailbox(CALLER), replicas, P.version, {count(LINE, '0\0'), count(LINE, '1\0'), count(LINE, '2\0')},
  call('ZCARD', SLOTS), live_names(ROUTERS), positions, P.run}
