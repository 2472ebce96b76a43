-- Shared by the data model: arguments of commands, their errors, and records that scripts pack.
--
-- `R` is the server. A stored string is a Lua string, or a record {kind = 'packed', packed = value} that a script packed: most records
-- are only ever read by scripts, so a copy of the table takes the place of its bytes. Bytes are made when a record
-- leaves Lua, or when its length is asked for.
local R = ...
local find, format, huge, sub, type, tonumber = string.find, string.format, math.huge, string.sub, type, tonumber

-- The keys.
R.db = {}

-- Return an empty table with room for a list of n. LuaJIT can make that room at once.
local found, new_table = pcall(require, 'table.new')
R.new_list = found and function(n) return new_table(n, 0) end or function() return {} end

-- Raise an error as Redis words it.
function R.fail(text) error({err = text}, 0) end

function R.wrong_type() R.fail('WRONGTYPE Operation against a key holding the wrong kind of value') end

-- Return a number as Redis 6.2 and 7.0 write it.
local function text(n)
  if n % 1 == 0 and n < 1e14 and n > -1e14 then return format('%.0f', n) end
  return format('%.17g', n)
end
R.text = text

-- Return an argument as the string that Redis would get.
function R.str(value)
  local kind = type(value)
  if kind == 'string' then return value end
  if kind == 'number' then return text(value) end
  if kind == 'table' and value.kind == 'packed' then return value end
  return R.fail('ERR Lua redis lib command arguments must be strings or integers')
end

-- Return an argument as a float; nil if it is none.
local function float(value)
  if type(value) == 'number' then
    if value == value then return value end
    return nil
  end
  if value == '0' then return 0 end
  if type(value) ~= 'string' or find(value, '%s') or find(value, '^[+-]?0[bB]') then return nil end
  local n = tonumber(value)
  if n == nil then
    local word = string.lower(value)
    if word == 'inf' or word == '+inf' or word == 'infinity' or word == '+infinity' then return huge end
    if word == '-inf' or word == '-infinity' then return -huge end
  end
  if n ~= n then return nil end
  return n
end
R.float = float

-- Return an argument as an integer; nil if it is none.
function R.integer(value)
  if type(value) == 'number' then
    if value % 1 == 0 and value < 1e17 and value > -1e17 then return value end
    return nil
  end
  if value == '0' then return 0 end
  if value == '1' then return 1 end
  if type(value) ~= 'string' or not find(value, '^-?[1-9]%d*$') then return nil end
  local n = tonumber(value)
  if n >= 9223372036854775808 or n < -9223372036854775808 then return nil end
  return n
end

function R.need_integer(value) return R.integer(value) or R.fail('ERR value is not an integer or out of range') end

-- Return the first and last position, from 1, of a range of n elements whose bounds count from 0, or from the end.
function R.positions(from, to, n)
  from, to = R.need_integer(from), R.need_integer(to)
  if from < 0 then from = math.max(0, n + from) end
  if to < 0 then to = n + to end
  if to >= n then to = n - 1 end
  return from + 1, to + 1
end

-- Return the bound of a range of scores and whether it is open; nil if it is none.
function R.score_bound(value)
  if type(value) ~= 'string' then return float(value), false end
  local open = sub(value, 1, 1) == '('
  -- Redis takes an empty bound as 0.
  local number = string.gsub(open and sub(value, 2) or value, '^%s+', '')
  return number == '' and 0 or float(number), open
end
