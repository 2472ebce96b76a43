-- Shared by every script: arguments, pool time, records. redis/scripts.py puts it in front of each script. Names in
-- capitals are numbers from names.lua.
--
-- KEYS: in the order of names.lua.
-- ARGV: 1 now (ms), 2 run id ("" takes the server's own; tests set them), 3 pool, 4 lease (ms), 5 attach grace (ms),
--       6 max_waiting, 7 lookahead, 8 grant_heartbeats, 9 to 11 class shares, preemption: 12 after (ms),
--       13 quantum (ms), 14 most per request; 15 how long results are kept (ms), 16 bytes of all results,
--       17 days of the ledger, 18 packed arguments of the script ("A"), of which the first is the caller

local call, K = redis.call, KEYS
local A = cmsgpack.unpack(ARGV[18])
local P -- the pool
-- Functions of the queue, and the state of this call. `caused`: list of {id, attempt, replica} granted to the caller,
-- or nil if the caller is rung like others. `reads_mail`: the caller reads its mailbox at the end, so its bell stays
-- silent. `unstored`, `unplaced`: replicas whose load, or perhaps place among the free ones, changed. `placed`: their
-- places there as they are stored. `goes_on`: further calls follow in this script, so nothing is stored yet.
-- `absent`, `ledger_ahead`: what `read_ahead` has not found, and the lines of the ledger that it has read.
-- Numbers that are always the same go to commands as text: Redis writes a number with 17 digits, which takes 0.2 us.
local Q = {entries = {}, loads = {}, router_alive = {}, replica_alive = {}, links = {}, beyond = {}, walls = 0, todo = {},
  todo_set = {}, granted = 0, fell_behind = 0, unstored = {}, unplaced = {}, placed = {}, by_class = {}, wanted = {},
  open = {}, emptied = {}, floors = {}, pruned = {},
  absent = {}, ledger_ahead = {}, lease = tonumber(ARGV[4]), lookahead = tonumber(ARGV[7])}

function Q.share(class) return tonumber(ARGV[9 + class]) end

-- Let a script run although Redis is full, by a first write that deletes nothing. A full Redis refuses a script whose
-- first write may need memory, and lets all other writes pass. Scripts that free memory or keep leases call this.
-- `submit` and `finish_key` add data and are refused.
function Q.pass_when_full()
  if Q.passes then return end
  Q.passes = true
  call('HDEL', K[BELLS], '')
end

-- Read the pool and compute its time. `lenient`: every lease counts as live, after a gap in which no process could
-- renew.
function Q.open_pool()
  if P then return end
  local raw
  if ARGV[1] ~= '' then
    raw = tonumber(ARGV[1])
  else
    local t = call('TIME')
    raw = tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
  end
  local packed = call('GET', K[POOL])
  if packed then
    P = cmsgpack.unpack(packed)
  else
    -- The fields of a pool, from P_TIME to P_BORN in names.lua. The first version is a number that no router can have
    -- seen before, even if Redis forgot everything.
    P = {0, 0, 0, 0, raw, MIDDLE, MIDDLE, 0, 0, 0, 0, 0, 0, 0, '', 0, 0, 0, 0, 0, raw}
    Q.changed, Q.new = true, true
  end
  Q.raw = raw
  Q.now = raw + P[P_SKEW]
  if Q.now < P[P_TIME] then
    Q.backward = true
    Q.now = P[P_TIME]
  end
  Q.lenient = Q.now < P[P_AMNESTY] or Q.now - P[P_TICK] > Q.lease / 2
end

function Q.set(field, value)
  if P[field] ~= value then
    P[field] = value
    Q.changed = true
  end
end

-- Store what changed. Every script that changes a pool or a load ends with this.
function Q.close_pool()
  if Q.goes_on then return end
  if next(Q.unstored) then Q.store_loads() end
  if Q.changed then call('SET', K[POOL], cmsgpack.pack(P)) end
end

-- Run a command on a list of members or fields. A command for all of them costs little more than one for one of them.
function Q.for_all(command, key, words)
  for from = 1, #words, WORDS_PER_COMMAND do
    call(command, key, unpack(words, from, math.min(#words, from + WORDS_PER_COMMAND - 1)))
  end
end

function Q.store_loads()
  Q.place_loads()
  local words = {}
  for replica in pairs(Q.unstored) do
    words[#words + 1] = replica
    words[#words + 1] = cmsgpack.pack(Q.loads[replica])
  end
  Q.for_all('HSET', K[LOAD], words)
  Q.unstored = {}
end

function Q.get(id)
  local e = Q.entries[id]
  if not e then
    if Q.absent[id] then return nil end
    local packed = call('HGET', K[ENTRIES], id)
    if not packed then return nil end
    e = cmsgpack.unpack(packed)
    Q.entries[id] = e
  end
  return e
end

function Q.put(id, e)
  Q.entries[id] = e
  call('HSET', K[ENTRIES], id, cmsgpack.pack(e))
end

function Q.get_load(replica)
  local l = Q.loads[replica]
  if not l then
    local packed = call('HGET', K[LOAD], replica)
    if not packed then return nil end
    l = cmsgpack.unpack(packed)
    Q.loads[replica], Q.placed[replica] = l, Q.place_of(l)
  end
  return l
end

-- Note that a load changed. It is stored once, at the end of the call.
function Q.put_load(replica, l)
  Q.loads[replica], Q.unstored[replica], Q.unplaced[replica] = l, true, true
end

-- Return the share of a replica's slots that are held, its place among the free ones; false if it is none of them.
function Q.place_of(l)
  local held = l[HELD] + l[EXTRA]
  if l[R_STATE] == 'ready' and l[CLOSED] == 0 and l[R_RESERVED] == '' and held < l[W_SEQUENCES] then
    return held / l[W_SEQUENCES]
  end
  return false
end

-- Bring the free replicas up to date.
function Q.place_loads()
  local with_room, without = {}, {}
  for replica in pairs(Q.unplaced) do
    local place = Q.place_of(Q.loads[replica])
    if place ~= Q.placed[replica] then
      Q.placed[replica] = place
      if place then
        with_room[#with_room + 1] = place
        with_room[#with_room + 1] = replica
        Q.none_free = false
      else
        without[#without + 1] = replica
      end
    end
  end
  Q.for_all('ZADD', K[FREE], with_room)
  Q.for_all('ZREM', K[FREE], without)
  Q.unplaced = {}
end

-- Return the names of replicas with room, the least loaded first; `last`: the place of the last one, from 0.
function Q.free_ones(last)
  if next(Q.unplaced) then Q.place_loads() end
  if Q.none_free then return {} end
  local names = call('ZRANGE', K[FREE], '0', last)
  Q.none_free = #names == 0
  return names
end

function Q.lease_live(key, memo, name)
  local live = memo[name]
  if live == nil then
    local till = call('ZSCORE', key, name)
    live = till and (Q.lenient or tonumber(till) > Q.now) or false
    memo[name] = live
  end
  return live
end

function Q.router_live(router) return Q.lease_live(K[ROUTERS], Q.router_alive, router) end
function Q.replica_live(replica) return Q.lease_live(K[REPLICAS], Q.replica_alive, replica) end

-- Return the members of a ZSET with score 0 that start with `prefix`, which ends in "\0".
function Q.members(key, prefix, limit)
  local till = '(' .. string.sub(prefix, 1, -2) .. '\1'
  if limit then return call('ZRANGEBYLEX', key, '[' .. prefix, till, 'LIMIT', '0', limit) end
  return call('ZRANGEBYLEX', key, '[' .. prefix, till)
end

function Q.count(key, prefix)
  return call('ZLEXCOUNT', key, '[' .. prefix, '(' .. string.sub(prefix, 1, -2) .. '\1')
end

function Q.split(member)
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

function Q.grant_member(id, e) return e[OWNER] .. '\0g\0' .. id .. '\0' .. e[ATTEMPT] .. '\0' .. e[REPLICA] end
function Q.owned_member(letter, id, e) return e[OWNER] .. '\0' .. letter .. '\0' .. id end
function Q.waiting_member(letter, id, e) return e[OWNER] .. '\0' .. letter .. '\0' .. e[PLACE] .. '\0' .. id end
function Q.slot_member(letter, id, e) return e[REPLICA] .. '\0' .. letter .. '\0' .. id .. '\0' .. e[ATTEMPT] end

-- Ring a router's bell, once until it reads its mail. After a lost ring the router's next heartbeat finds the mail. A
-- router without lease may never read its mail again, so it is not rung.
function Q.ring(router)
  if Q.reads_mail and router == A[1] or not call('ZSCORE', K[ROUTERS], router) then return end
  if call('HSETNX', K[BELLS], router, '1') == 1 then call('PUBLISH', 'penstock:1:bell:' .. router, ARGV[3]) end
end

function Q.mailbox(router)
  call('HDEL', K[BELLS], router)
  return call('ZRANGEBYLEX', K[OWNERS], '[' .. router .. '\0c', '(' .. router .. '\0h')
end
