-- Strings, lists, sets, and commands for keys of any type.
local R = ...
local db, str, need_integer = R.db, R.str, R.need_integer
local byte, char, floor, rep, sub = string.byte, string.char, math.floor, string.rep, string.sub
local select, type = select, type
local C = R.commands

local function is_string(value) return type(value) == 'string' or value.kind == 'packed' end

local function string_of(key)
  local value = db[key]
  if value == nil or is_string(value) then return value end
  return R.wrong_type()
end

function C.GET(key)
  local value = string_of(key)
  if value == nil then return false end
  return value
end

function C.SET(key, value)
  db[key] = str(value)
  return {ok = 'OK'}
end

local function bit_place(offset)
  local at = R.integer(offset)
  if not at or at < 0 or at >= 4294967296 then R.fail('ERR bit offset is not an integer or out of range') end
  return floor(at / 8) + 1, 2 ^ (7 - at % 8)
end

function C.GETBIT(key, offset)
  local at, weight = bit_place(offset)
  local value = string_of(key)
  local here = value and byte(R.bytes(value), at) or 0
  return floor(here / weight) % 2
end

function C.SETBIT(key, offset, bit)
  local at, weight = bit_place(offset)
  bit = R.integer(bit)
  if bit ~= 0 and bit ~= 1 then R.fail('ERR bit is not an integer or out of range') end
  local value = R.bytes(string_of(key) or '')
  if #value < at then value = value .. rep('\0', at - #value) end
  local here = byte(value, at)
  local old = floor(here / weight) % 2
  db[key] = sub(value, 1, at - 1) .. char(here + (bit - old) * weight) .. sub(value, at + 1)
  return old
end

-- A list has elements `first` to `last` of `v`.
local function list_of(key)
  local list = db[key]
  if list == nil or list.kind == 'list' then return list end
  return R.wrong_type()
end

local function open_list(key)
  local list = list_of(key)
  if list == nil then
    list = {kind = 'list', v = {}, first = 1, last = 0}
    db[key] = list
  end
  return list
end

function C.RPUSH(key, ...)
  local list = open_list(key)
  for i = 1, select('#', ...) do
    list.last = list.last + 1
    list.v[list.last] = str((select(i, ...)))
  end
  return list.last - list.first + 1
end

function C.LPUSH(key, ...)
  local list = open_list(key)
  for i = 1, select('#', ...) do
    list.first = list.first - 1
    list.v[list.first] = str((select(i, ...)))
  end
  return list.last - list.first + 1
end

function C.LLEN(key)
  local list = list_of(key)
  return list and list.last - list.first + 1 or 0
end

function C.LRANGE(key, from, to)
  from, to = need_integer(from), need_integer(to)
  local list, out = list_of(key), {}
  if not list then return out end
  from, to = R.positions(from, to, list.last - list.first + 1)
  for i = from, to do out[#out + 1] = list.v[list.first + i - 1] end
  return out
end

function C.LTRIM(key, from, to)
  from, to = need_integer(from), need_integer(to)
  local list = list_of(key)
  if not list then return {ok = 'OK'} end
  from, to = R.positions(from, to, list.last - list.first + 1)
  if from > to then
    db[key] = nil
    return {ok = 'OK'}
  end
  local first, last = list.first + from - 1, list.first + to - 1
  for i = list.first, first - 1 do list.v[i] = nil end
  for i = last + 1, list.last do list.v[i] = nil end
  list.first, list.last = first, last
  return {ok = 'OK'}
end

-- A set has its members as keys of `v`.
local function set_of(key)
  local set = db[key]
  if set == nil or set.kind == 'set' then return set end
  return R.wrong_type()
end

function C.SADD(key, ...)
  local set = set_of(key) or {kind = 'set', v = {}}
  db[key] = set
  local added = 0
  for i = 1, select('#', ...) do
    local member = str((select(i, ...)))
    if not set.v[member] then
      set.v[member] = true
      added = added + 1
    end
  end
  return added
end

function C.SMEMBERS(key)
  local set, out = set_of(key), {}
  for member in pairs(set and set.v or {}) do out[#out + 1] = member end
  table.sort(out)
  return out
end

function C.EXISTS(...)
  local found = 0
  for i = 1, select('#', ...) do if db[select(i, ...)] ~= nil then found = found + 1 end end
  return found
end

function C.DEL(...)
  local gone = 0
  for i = 1, select('#', ...) do
    local key = select(i, ...)
    if db[key] ~= nil then
      db[key] = nil
      gone = gone + 1
    end
  end
  return gone
end
C.UNLINK = C.DEL

function C.TYPE(key)
  local value = db[key]
  return {ok = value == nil and 'none' or is_string(value) and 'string' or value.kind}
end

function C.KEYS(pattern)
  if pattern ~= '*' then R.fail('ERR Redis in process lists all keys only: KEYS *') end
  local out = {}
  for key in pairs(db) do out[#out + 1] = key end
  return out
end

function C.FLUSHALL()
  for key in pairs(db) do db[key] = nil end
  return {ok = 'OK'}
end
