-- Hashes. `v` maps fields to values; `order` lists the fields, and `at` has their places there, so that any of them can
-- be drawn, and replies have the same order in every run.
local R = ...
local db, str = R.db, R.str
local select = select
local C = R.commands

local function hash_of(key)
  local hash = db[key]
  if hash == nil or hash.kind == 'hash' then return hash end
  return R.wrong_type()
end

local function open_hash(key)
  local hash = hash_of(key)
  if hash == nil then
    hash = {kind = 'hash', v = {}, order = {}, at = {}, n = 0}
    db[key] = hash
  end
  return hash
end

local function put(hash, field, value)
  local is_new = hash.v[field] == nil
  if is_new then
    local n = hash.n + 1
    hash.n, hash.order[n], hash.at[field] = n, field, n
  end
  hash.v[field] = value
  return is_new and 1 or 0
end

local function drop(hash, field)
  if hash.v[field] == nil then return 0 end
  local n, at, order = hash.n, hash.at[field], hash.order
  local moved = order[n]
  order[at], hash.at[moved] = moved, at
  order[n], hash.at[field], hash.v[field] = nil, nil, nil
  hash.n = n - 1
  return 1
end

function C.HSET(key, field, value, ...)
  local more = select('#', ...)
  if more == 0 then return put(open_hash(key), str(field), str(value)) end
  if more % 2 == 1 then R.wrong_arity('hset') end
  local hash = open_hash(key)
  local added = put(hash, str(field), str(value))
  for i = 1, more, 2 do added = added + put(hash, str((select(i, ...))), str((select(i + 1, ...)))) end
  return added
end

function C.HSETNX(key, field, value)
  local hash = hash_of(key)
  field = str(field)
  if hash and hash.v[field] ~= nil then return 0 end
  return put(hash or open_hash(key), field, str(value))
end

function C.HGET(key, field)
  local hash = hash_of(key)
  local value = hash and hash.v[str(field)]
  if value == nil then return false end
  return value
end

function C.HMGET(key, ...)
  local hash, out = hash_of(key), {...}
  local values = hash and hash.v or {}
  for i = 1, #out do
    local value = values[str(out[i])]
    if value == nil then value = false end
    out[i] = value
  end
  return out
end

function C.HGETALL(key)
  local hash, out = hash_of(key), {}
  if not hash then return out end
  local order, v = hash.order, hash.v
  for i = 1, hash.n do
    out[2 * i - 1], out[2 * i] = order[i], v[order[i]]
  end
  return out
end

function C.HDEL(key, ...)
  local hash, gone = hash_of(key), 0
  if not hash then return 0 end
  for i = 1, select('#', ...) do gone = gone + drop(hash, str((select(i, ...)))) end
  if hash.n == 0 then db[key] = nil end
  return gone
end

function C.HLEN(key)
  local hash = hash_of(key)
  return hash and hash.n or 0
end

function C.HEXISTS(key, field)
  local hash = hash_of(key)
  return hash and hash.v[str(field)] ~= nil and 1 or 0
end

function C.HSTRLEN(key, field)
  local hash = hash_of(key)
  local value = hash and hash.v[str(field)]
  return value and #R.bytes(value) or 0
end

function C.HINCRBY(key, field, by)
  by = R.need_integer(by)
  local hash = hash_of(key)
  field = str(field)
  local old = hash and hash.v[field]
  local value = old == nil and 0 or R.integer(R.bytes(old))
  if not value then R.fail('ERR hash value is not an integer') end
  local sum = value + by
  if sum >= 9223372036854775808 or sum < -9223372036854775808 then
    R.fail('ERR increment or decrement would overflow')
  end
  put(hash or open_hash(key), field, string.format('%.0f', sum))
  return sum
end

function C.HINCRBYFLOAT(key, field, by)
  by, field = str(by), str(field)
  -- The increment is looked at first.
  local _, wrong = R.add_floats('0', by)
  if wrong then R.fail(wrong) end
  local hash = hash_of(key)
  local old = hash and hash.v[field]
  local sum, why = R.add_floats(old == nil and '0' or R.bytes(old), by)
  if why then R.fail(why) end
  put(hash or open_hash(key), field, sum)
  return sum
end

function C.HRANDFIELD(key, count, ...)
  if select('#', ...) > 0 then R.fail('ERR syntax error') end
  if count ~= nil then count = R.need_integer(count) end
  local hash = hash_of(key)
  if count == nil then
    if not hash then return false end
    return hash.order[R.random(hash.n)]
  end
  local out = {}
  if not hash then return out end
  if count < 0 then
    for i = 1, -count do out[i] = hash.order[R.random(hash.n)] end
    return out
  end
  -- A run of neighbours, from a place drawn by chance: all different.
  local first = R.random(hash.n)
  for i = 0, math.min(count, hash.n) - 1 do out[i + 1] = hash.order[(first + i - 1) % hash.n + 1] end
  return out
end
