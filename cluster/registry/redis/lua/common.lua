-- Shared by all scripts on the registry; redis/scripts.py puts it in front of each.
--
-- KEYS, all of one hash slot; redis/keys.py has their lifetimes
--  1 HASH state     life, version, lines, digest, floor: version of the last entry that was removed for good
--  2 HASH entries   "kind\0name" -> "version:ms:+value", or "version:ms:-" for a deleted one
--  3 ZSET versions  "kind\0name" -> version
--  4 ZSET gone      deleted ones among these
--  5 LIST history   changes, oldest first: digest, then number, ms, tenant, credential, id, version, signed value before
--                   and signed value after, each as "length:bytes"
--  6 HASH watchers  id -> "ms:version:report"
local STATE, ENTRIES, VERSIONS, GONE, HISTORY, WATCHERS = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local MOST_GONE = 10000
local call = redis.call

local function text(n) return string.format('%.0f', n) end

local function clock(given)
  if given ~= '' then return tonumber(given) end
  local t = call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end

-- Life and version of the registry. A registry that lost a part has no life: its watchers give it back.
local function state()
  local life = call('HGET', STATE, 'life') or ''
  local version = tonumber(call('HGET', STATE, 'version')) or 0
  if life ~= '' and call('HLEN', ENTRIES) ~= call('ZCARD', VERSIONS) then
    call('UNLINK', STATE, ENTRIES, VERSIONS, GONE)
    return '', 0
  end
  return life, version
end

local function found(id)
  local packed = call('HGET', ENTRIES, id)
  if not packed then return 0, nil end
  local version, sign, value = string.match(packed, '^(%d+):%d+:([+-])(.*)$')
  return tonumber(version), sign == '+' and value or nil
end

-- Store an entry: `packed` has its version, time and value.
local function store(id, version, packed, deleted)
  call('HSET', ENTRIES, id, packed)
  call('ZADD', VERSIONS, text(version), id)
  if not deleted then
    call('ZREM', GONE, id)
    return
  end
  call('ZADD', GONE, text(version), id)
  if call('ZCARD', GONE) > MOST_GONE then
    local oldest = call('ZRANGE', GONE, 0, 0, 'WITHSCORES')
    for _, key in ipairs({VERSIONS, GONE}) do call('ZREM', key, oldest[1]) end
    call('HDEL', ENTRIES, oldest[1])
    call('HSET', STATE, 'floor', oldest[2])
  end
end

local function joined(...)
  local parts = {}
  for i = 1, select('#', ...) do
    local part = select(i, ...)
    parts[i] = #part .. ':' .. part
  end
  return table.concat(parts)
end

-- Return the n-th part of a line.
local function part(line, n)
  local at = 41
  while true do
    local first, last, length = string.find(line, '^(%d+):', at)
    if n == 1 then return string.sub(line, last + 1, last + length) end
    at, n = last + length + 1, n - 1
  end
end
