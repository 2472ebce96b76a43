-- Shared by all scripts on responses; redis/scripts.py puts it in front of each.
--
-- KEYS, all of one hash slot; redis/keys.py has their lifetimes
--  1 HASH response tenant created request result bytes token started journal run place cancelled read; times in ms
--  2 HASH journal  number -> chunk
--  3 ZSET ended    id -> ms of its end
--  4 ZSET open     "tenant\0id" -> ms of the lease's end
--  5 ZSET due      "tenant\0id" -> ms of its deletion
--  6 HASH usage    "running\0tenant", "bytes\0tenant" -> count
--
-- ARGV: 1 time in ms, or "" for the server's; 2 tenant; 3 id; further ones are each script's own
local RESPONSE, JOURNAL, ENDED, OPEN, DUE, USAGE = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local call = redis.call
local TENANT, ID = ARGV[2], ARGV[3]
local MEMBER = TENANT .. '\0' .. ID
local NOW = tonumber(ARGV[1])
if not NOW then
  local t = call('TIME')
  NOW = t[1] * 1000 + math.floor(t[2] / 1000)
end

-- Let a script run although Redis is full, by a first write that deletes nothing. A full Redis refuses a script whose
-- first write may need memory, and lets all other writes pass. Scripts that free memory or keep a lease call this.
local function pass_when_full() call('HDEL', USAGE, '') end

local function get(field) return call('HGET', RESPONSE, field) or '' end

local function text(n) return string.format('%.0f', n) end

local function counted(what) return tonumber(call('HGET', USAGE, what .. '\0' .. TENANT)) or 0 end

local function count(what, by)
  -- Lua writes the negative of zero as "-0", which Redis does not accept as an integer.
  if by == 0 then return end
  local field = what .. '\0' .. TENANT
  -- It falls below 0 only after Redis lost the counts.
  if call('HINCRBY', USAGE, field, text(by)) <= 0 then call('HDEL', USAGE, field) end
end

local function is_here() return get('tenant') == TENANT end

local function is_running() return is_here() and get('result') == '' end

local function is_held(token) return is_running() and get('token') == token end

local SOME = 512 -- most ids that one call returns: a bound that was lowered leaves very many

-- Return ids of ended responses that must go so that so many more bytes, and `more` responses, are within the bounds;
-- others may have to go after them. `some` is how many go at once for bytes: how many each has is not known here.
-- Nil where none is left.
local function surplus(most, most_bytes, bytes, more, some)
  local excess = call('ZCARD', ENDED) + counted('running') + more - most
  local excess_bytes = counted('bytes') + bytes - most_bytes
  if excess <= 0 and excess_bytes <= 0 then return {} end
  local oldest = call('ZRANGE', ENDED, 0, math.min(SOME, math.max(excess, excess_bytes > 0 and some or 1)) - 1)
  if #oldest == 0 then return nil end
  return oldest
end
