-- Shared by every script: keys, arguments, pool time, records. Prepended when the scripts are loaded.
--
-- KEYS (all of one pool, one hash slot; names and lifetimes in keys.py)
--   pool      HASH  time, tick, skew, amnesty (ms); run; version; head, tail; v0-v2 (virtual time per class);
--                   s0-s2, st (tokens served per class and in all, while classes competed)
--   entries   HASH  request id -> packed record, fields below
--   line      ZSET  score 0, "class\0tenant\0place\0id" of every entry that may be granted
--   active*   ZSET  per class: tenants in the line, by weighted service
--   idle*     ZSET  per class: tenants out of the line whose service is above the floor
--   owners    ZSET  score 0, what a router owns: "router\0w\0place\0id" waiting, "p" the same but parked,
--                   "router\0r\0id" running; its mail: "router\0g\0id\0attempt\0replica" grant, "router\0c\0id" order
--                   to cancel, "router\0e\0id" order expired
--   slots     ZSET  score 0, "replica\0g\0id\0attempt" granted, "r" started: who holds the replica's slots
--   load      HASH  replica -> packed windows, use and state, fields below
--   free      ZSET  replicas that may take one more sequence, by share of slots held
--   registry  HASH  replica -> packed {record, stats}
--   replicas  ZSET  replica leases, by end (ms)
--   routers   ZSET  router leases, by end (ms)
--   parted    ZSET  routers without lease, by when their waiting entries go (ms)
--   links     ZSET  score 0, "router\0replica": the router has a healthy link there
--   keys      HASH  "tenant\0client key" -> request id
--   skips     HASH  request id -> how often it was passed over
--   prefs     HASH  replica -> entries in the line that prefer it
--   deadlines ZSET  request ids in the line, by the last moment of a grant (ms)
--   bells     HASH  router -> 1 while its bell has rung and it has not looked
--
-- ARGV: now (ms) and run id ("" takes the server's own; set by tests only), pool, lease_ms, attach_grace_ms, max_waiting,
-- lookahead, grant_heartbeats, three class shares, packed arguments of the script (the first is the caller).

local POOL, ENTRIES, LINE = KEYS[1], KEYS[2], KEYS[3]
local ACTIVE = {[0] = KEYS[4], KEYS[5], KEYS[6]}
local IDLE = {[0] = KEYS[7], KEYS[8], KEYS[9]}
local OWNERS, SLOTS, LOAD, FREE, REGISTRY = KEYS[10], KEYS[11], KEYS[12], KEYS[13], KEYS[14]
local REPLICAS, ROUTERS, PARTED, LINKS = KEYS[15], KEYS[16], KEYS[17], KEYS[18]
local CLIENT_KEYS, SKIPS, PREFS, DEADLINES, BELLS = KEYS[19], KEYS[20], KEYS[21], KEYS[22], KEYS[23]

local POOL_NAME = ARGV[3]
local LEASE, GRACE, MAX_WAITING = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local LOOKAHEAD, GRANT_HEARTBEATS = tonumber(ARGV[7]), tonumber(ARGV[8])
local SHARE = {[0] = tonumber(ARGV[9]), tonumber(ARGV[10]), tonumber(ARGV[11])}
local A = cmsgpack.unpack(ARGV[12])
local CALLER = A[1]

local BELL_CHANNEL = 'penstock:1:bell:'
local MIDDLE = 5e15 -- first place; places count up for arrivals and down for returns, exact in a double
local CHUNK = 1000 -- entries that one call moves or forgets, so that no call takes more than some milliseconds
local GRANTS_PER_CALL = 32
local REPLICAS_TRIED = 32

-- Fields of an entry.
local OWNER, TENANT, CLASS, PLACE, PROMPT, EXPECTED, KV = 1, 2, 3, 4, 5, 6, 7
local START_BY, CLIENT_KEY, PREFERRED, WEIGHT, BASE = 8, 9, 10, 11, 12 -- START_BY: ms, 0 is never; PREFERRED: "\0a\0b\0"
local NUMBER, ATTEMPT, REPLICA, STATE = 13, 14, 15, 16 -- STATE: w waiting, p parked, f in flight, o left by an order
local SUBMITTED, GRANTED, BEATS, PREFILLED = 17, 18, 19, 20 -- ms, ms, owner heartbeats since the grant, 0 or 1
local CHARGED, COUNTED, RESERVED, ORDER = 21, 22, 23, 24 -- tokens (-1: not yet), 0 or 1, replica, "" or c or e
local RUN, RESUME, PREEMPTIONS = 25, 26, 27 -- run id at submit, 0 or 1, times

-- Fields of a load.
local W_SEQUENCES, W_KV, W_PREFILL, HELD, EXTRA = 1, 2, 3, 4, 5 -- EXTRA: reported running, unknown here
local USED_KV, USED_PREFILL, R_STATE, CLOSED, R_RESERVED = 6, 7, 8, 9, 10 -- R_RESERVED: request id
local BEAT, REPORTED = 11, 12 -- ms of the last heartbeat; 1 when USED_KV rests on a report

local call = redis.call
local P, changed = {}, {}
local NOW, BACKWARD, LENIENT = 0, false, false
local NUMBERS = {'time', 'tick', 'skew', 'amnesty', 'version', 'head', 'tail', 'v0', 'v1', 'v2', 's0', 's1', 's2', 'st'}

-- Read the pool and tell its time. LENIENT: after a gap in which nobody could renew, every lease counts as live.
local function open_pool()
  local got = call('HMGET', POOL, 'time', 'tick', 'skew', 'amnesty', 'version', 'head', 'tail',
    'v0', 'v1', 'v2', 's0', 's1', 's2', 'st', 'run')
  for i, name in ipairs(NUMBERS) do P[name] = tonumber(got[i]) or 0 end
  P.run = got[15] or ''
  local raw
  if ARGV[1] ~= '' then
    raw = tonumber(ARGV[1])
  else
    local t = call('TIME')
    raw = tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
  end
  NOW = raw + P.skew
  if NOW < P.time then
    BACKWARD = true
    NOW = P.time
  end
  P.raw = raw
  if P.version == 0 then
    -- A number that no router can have seen before, also when Redis forgot everything.
    P.version, P.head, P.tail = NOW, MIDDLE, MIDDLE
    changed.version, changed.head, changed.tail = true, true, true
  end
  LENIENT = NOW < P.amnesty or NOW - P.tick > LEASE / 2
end

local function set(name, value)
  if P[name] ~= value then
    P[name] = value
    changed[name] = true
  end
end

local function close_pool()
  if next(changed) == nil then return end
  changed.time = true
  P.time = NOW
  local fields = {}
  for name in pairs(changed) do
    fields[#fields + 1] = name
    fields[#fields + 1] = P[name]
  end
  call('HSET', POOL, unpack(fields))
end

local entries, loads, router_alive, replica_alive = {}, {}, {}, {}

local function get(id)
  local e = entries[id]
  if not e then
    local packed = call('HGET', ENTRIES, id)
    if not packed then return nil end
    e = cmsgpack.unpack(packed)
    entries[id] = e
  end
  return e
end

local function put(id, e)
  entries[id] = e
  call('HSET', ENTRIES, id, cmsgpack.pack(e))
end

local function get_load(replica)
  local l = loads[replica]
  if not l then
    local packed = call('HGET', LOAD, replica)
    if not packed then return nil end
    l = cmsgpack.unpack(packed)
    loads[replica] = l
  end
  return l
end

-- Store a load and keep the replica's place among the free ones.
local function put_load(replica, l)
  loads[replica] = l
  call('HSET', LOAD, replica, cmsgpack.pack(l))
  local held = l[HELD] + l[EXTRA]
  if l[R_STATE] == 'ready' and l[CLOSED] == 0 and l[R_RESERVED] == '' and held < l[W_SEQUENCES] then
    call('ZADD', FREE, held / l[W_SEQUENCES], replica)
  else
    call('ZREM', FREE, replica)
  end
end

local function lease_live(key, memo, name)
  local live = memo[name]
  if live == nil then
    local till = call('ZSCORE', key, name)
    live = till and (LENIENT or tonumber(till) > NOW) or false
    memo[name] = live
  end
  return live
end

local function router_live(router) return lease_live(ROUTERS, router_alive, router) end
local function replica_live(replica) return lease_live(REPLICAS, replica_alive, replica) end

-- Members of a ZSET of score 0 that start with prefix, which ends in "\0".
local function members(key, prefix, limit)
  local till = '(' .. string.sub(prefix, 1, -2) .. '\1'
  if limit then return call('ZRANGEBYLEX', key, '[' .. prefix, till, 'LIMIT', 0, limit) end
  return call('ZRANGEBYLEX', key, '[' .. prefix, till)
end

local function count(key, prefix)
  return call('ZLEXCOUNT', key, '[' .. prefix, '(' .. string.sub(prefix, 1, -2) .. '\1')
end

local function split(member)
  local parts, from = {}, 1
  while true do
    local at = string.find(member, '\0', from, true)
    if not at then
      parts[#parts + 1] = string.sub(member, from)
      return parts
    end
    parts[#parts + 1] = string.sub(member, from, at - 1)
    from = at + 1
  end
end

local function grant_member(id, e) return e[OWNER] .. '\0g\0' .. id .. '\0' .. e[ATTEMPT] .. '\0' .. e[REPLICA] end
local function owned_member(letter, id, e) return e[OWNER] .. '\0' .. letter .. '\0' .. id end
local function waiting_member(letter, id, e) return e[OWNER] .. '\0' .. letter .. '\0' .. e[PLACE] .. '\0' .. id end
local function slot_member(letter, id, e) return e[REPLICA] .. '\0' .. letter .. '\0' .. id .. '\0' .. e[ATTEMPT] end

local reads_mail = false -- the caller reads its mailbox at the end of this call, so its bell stays silent

-- Ring once until the router looks; a lost ring is made good by the router's next heartbeat.
local function ring(router)
  if reads_mail and router == CALLER then return end
  if call('HSETNX', BELLS, router, 1) == 1 then call('PUBLISH', BELL_CHANNEL .. router, POOL_NAME) end
end

local function mailbox(router)
  call('HDEL', BELLS, router)
  return call('ZRANGEBYLEX', OWNERS, '[' .. router .. '\0c', '(' .. router .. '\0h')
end
