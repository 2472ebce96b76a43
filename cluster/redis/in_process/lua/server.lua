-- Commands from scripts and clients, and the scripts themselves.
local R = ...
local C = R.commands
local floor, select, type, unpack = math.floor, select, type, unpack
local debug, ceil = debug, math.ceil

-- Least number of words of each command, its name included; exact for those that take no more.
local ARITY = {
  GET = 2, SET = 3, GETBIT = 3, SETBIT = 4, EXISTS = -2, DEL = -2, UNLINK = -2, TYPE = 2, KEYS = 2, FLUSHALL = 1,
  RPUSH = -3, LPUSH = -3, LLEN = 2, LRANGE = 4, LTRIM = 4, SADD = -3, SMEMBERS = 2,
  HSET = -4, HSETNX = 4, HGET = 3, HMGET = -3, HGETALL = 2, HDEL = -3, HLEN = 2, HEXISTS = 3, HSTRLEN = 3,
  HINCRBY = 4, HINCRBYFLOAT = 4, HRANDFIELD = -2,
  ZADD = -4, ZREM = -3, ZSCORE = 3, ZCARD = 2, ZRANK = 3, ZRANDMEMBER = 2, ZRANGE = -4,
  ZRANGEBYSCORE = -4, ZCOUNT = 4, ZREMRANGEBYSCORE = 4, ZRANGEBYLEX = -4, ZREVRANGEBYLEX = -4, ZLEXCOUNT = 4,
  TIME = 1, INFO = -1, PUBLISH = 3, PING = 1,
}

function R.wrong_arity(name) R.fail("ERR wrong number of arguments for '" .. name .. "' command") end

-- Time of the call that runs, in milliseconds.
local now_ms = 0
-- Messages that were published and not delivered: channel, message, channel, message.
local published = {}
-- Channel -> number of subscribers.
local listeners = {}

function C.TIME()
  return {R.text(floor(now_ms / 1000)), R.text(now_ms % 1000 * 1000)}
end

function C.INFO() return '# Server\r\nredis_mode:standalone\r\nrun_id:' .. R.run_id .. '\r\n' end

function C.PING() return {ok = 'PONG'} end

function C.PUBLISH(channel, message)
  channel = R.str(channel)
  local n = listeners[channel] or 0
  if n > 0 then
    published[#published + 1] = channel
    published[#published + 1] = R.bytes(R.str(message))
  end
  return n
end

function R.listen(channel, n) listeners[channel] = n end

function R.take_published()
  local out = published
  published = {}
  return unpack(out)
end

local function call(name, ...)
  local command, arity = C[name], ARITY[name]
  if not command then
    name = string.upper(tostring(name))
    command, arity = C[name], ARITY[name]
    if not command then R.fail('ERR Unknown Redis command called from script') end
  end
  local n = select('#', ...) + 1
  if arity > 0 and n ~= arity or n < -arity then
    R.fail('ERR Wrong number of args calling Redis command from script')
  end
  return command(...)
end

-- What scripts see. Redis lets them neither make globals nor read unknown ones.
local scope = setmetatable({
  KEYS = {}, ARGV = {}, redis = {call = call, sha1hex = R.sha1hex}, cmsgpack = R.cmsgpack,
  math = math, string = string, table = table, tonumber = tonumber, tostring = tostring, type = type, unpack = unpack,
  ipairs = ipairs, pairs = pairs, next = next, select = select, error = error, assert = assert, pcall = pcall,
}, {
  __newindex = function(_, name) error('Attempt to modify a readonly table: ' .. tostring(name), 2) end,
  __index = function(_, name)
    error("Script attempted to access nonexistent global variable '" .. tostring(name) .. "'", 2)
  end,
})

-- Return a script as a function.
function R.compile(source)
  local script, why = loadstring(source, '@user_script')
  if not script then R.fail('ERR Error compiling script (new function): ' .. why) end
  return setfenv(script, scope)
end

-- Return a call of a script whose last argument may change.
function R.prepare(script, sha, key_count, ...)
  local words = {...}
  local keys, arguments = {}, {}
  for i = 1, key_count do keys[i] = words[i] end
  for i = key_count + 1, #words do arguments[i - key_count] = words[i] end
  return {script = script, sha = sha, keys = keys, arguments = arguments, last = #arguments}
end

-- Turn a script's value into a reply: false and nil are nil, numbers lose their fraction, and a list ends at its first
-- nil.
local make_list, extend_list = R.make_list, R.extend_list
local function reply(value)
  local kind = type(value)
  if kind == 'string' then return value end
  if kind == 'number' then return value >= 0 and floor(value) or ceil(value) end
  if kind == 'table' then
    if value.kind == 'packed' then return R.bytes(value) end
    if value.ok then return value.ok end
    if value.err then R.fail(value.err) end
    local out, n = {}, 0
    for i = 1, #value do
      local one = value[i]
      if one == nil then break end
      n = i
      out[i] = reply(one)
    end
    if n <= 200 then return make_list(unpack(out, 1, n)) end
    local list = make_list()
    for from = 1, n, 200 do extend_list(list, unpack(out, from, math.min(n, from + 199))) end
    return list
  end
  if value == true then return 1 end
  return nil
end

-- Return a reply as values: whether messages were published, whether it is a list whose elements follow, and these.
-- Most replies are short lists of plain values, which cross to Python best in this form.
local function answer(value)
  if type(value) == 'table' and value.kind ~= 'packed' and not value.ok and not value.err then
    local n, plain = #value, true
    for i = 1, n do
      local kind = type(value[i])
      if kind ~= 'string' and (kind ~= 'number' or value[i] % 1 ~= 0) then
        plain = false
        break
      end
    end
    if plain and n <= 16 then return #published > 0, true, unpack(value, 1, n) end
  end
  return #published > 0, false, reply(value)
end

-- Word a script's error as Redis does.
local function explain(why)
  local line
  for level = 2, 30 do
    local info = debug.getinfo(level, 'Sl')
    if not info then break end
    if info.short_src == 'user_script' then
      line = info.currentline
      break
    end
  end
  local message = type(why) == 'table' and why.err or 'ERR ' .. tostring(why)
  -- The line is lost where a script's last act is the call.
  return {err = message, line = line or '?'}
end

local function finish(sha, ok, ...)
  if ok then return answer(...) end
  local why = ...
  return nil, why.err .. ' script: ' .. sha .. ', on @user_script:' .. why.line .. '.'
end

-- Run a prepared call with another last argument.
function R.run(prepared, time_ms, last)
  now_ms = time_ms
  local arguments = prepared.arguments
  if prepared.last > 0 then arguments[prepared.last] = last end
  scope.KEYS, scope.ARGV = prepared.keys, arguments
  return finish(prepared.sha, xpcall(prepared.script, explain))
end

-- Run a client's command.
function R.command(time_ms, name, ...)
  now_ms = time_ms
  name = string.upper(name)
  local command, arity = C[name], ARITY[name]
  if not command then return nil, "ERR unknown command '" .. name .. "' of Redis in process" end
  local n = select('#', ...) + 1
  if arity > 0 and n ~= arity or n < -arity then
    return nil, "ERR wrong number of arguments for '" .. string.lower(name) .. "' command"
  end
  local ok, value = pcall(command, ...)
  if ok then return answer(value) end
  return nil, type(value) == 'table' and value.err or 'ERR ' .. tostring(value)
end
