-- Shared by all scripts on one job; redis/scripts.py puts it in front of each.
--
-- KEYS, all of one pool and one hash slot; redis/keys.py has their lifetimes
--  1 HASH record   tenant key header digest state created started ended due items blocks bodies results failed bytes
--                  holder token prompt output cached reasoning gpu cost lost note kept ttl written errors dropped; times in
--                  ms; "bodies" and "bytes" count stored bytes; "lost" names the part that Redis lost; "kept" of a file is
--                  "file", or "hidden" once it was deleted while a job reads it; "written" and "errors" count bytes of
--                  the lines of results; "dropped" names results that were deleted
--  2 HASH items    block number -> block; of a job on a file: the file's
--  3 LIST sizes    items per block; of a job on a file: the file's
--  4 HASH results  offset -> result
--  5 STRING done   bit per item
--  6 HASH failures item -> count; "item\0" -> name of the execution that was counted last
--  7 ZSET holds    job on this file that is open, or ended before all items had run -> ms when it expires, or is
--                  deleted; of a job on a file: the file's
--  8 ZSET open     job -> ms from when it may be claimed
--  9 ZSET due      job -> ms
-- 10 ZSET index    score 0, "tenant\0created\0id"
-- 11 ZSET files    the same of files
-- 12 HASH names    "tenant\0client key" -> id
-- 13 HASH usage    "what\0tenant", "what\0" -> count
--
-- ARGV: 1 time in ms, or "" for the server's; 2 job id; further ones are each script's own
local RECORD, ITEMS, SIZES, RESULTS, DONE, FAILURES = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local HOLDS, OPEN, DUE, INDEX, FILES, NAMES, USAGE = KEYS[7], KEYS[8], KEYS[9], KEYS[10], KEYS[11], KEYS[12], KEYS[13]
local call = redis.call
local ID = ARGV[2]
-- Whether the bodies are this job's own, and not those of a file.
local OWN = string.sub(ITEMS, 1, #RECORD - 6) == string.sub(RECORD, 1, #RECORD - 6)
local NOW = tonumber(ARGV[1])
if not NOW then
  local t = call('TIME')
  NOW = t[1] * 1000 + math.floor(t[2] / 1000)
end

-- Let a script run although Redis is full, by a first write that deletes nothing. A full Redis refuses a script whose
-- first write may need memory, and lets all other writes pass. Scripts that free memory or keep a lease call this.
local function pass_when_full() call('HDEL', USAGE, '') end

local function get(field) return call('HGET', RECORD, field) or '' end

local function number(field) return tonumber(call('HGET', RECORD, field)) or 0 end

local function count(what, tenant, by)
  -- Lua writes the negative of zero as "-0", which Redis does not accept as an integer.
  if by == 0 then return end
  for _, name in ipairs({what .. '\0' .. tenant, what .. '\0'}) do
    -- It falls below 0 only after Redis lost the counts.
    if call('HINCRBY', USAGE, name, by) <= 0 then call('HDEL', USAGE, name) end
  end
end

local function counted(what, tenant) return tonumber(call('HGET', USAGE, what .. '\0' .. tenant)) or 0 end

local function text(n) return string.format('%.0f', n) end

-- Whether a job with this score may be claimed. A score further in the future than any router sets is from before the
-- clock was set back. The bound is twice the lease, because other routers may have a longer one.
local function is_due(from, lease) return from <= NOW or from - NOW > 2 * lease end

local function is_open(state) return state == 'queued' or state == 'running' end

-- Note that no router feeds the job any more.
local function unhold()
  if get('holder') ~= '' then count('feeding', get('tenant'), -1) end
  call('HSET', RECORD, 'holder', '', 'token', '')
end

-- Remove a job's bodies, or leave those of its file.
local function leave_bodies()
  call('UNLINK', DONE, FAILURES)
  if OWN then call('UNLINK', ITEMS, SIZES) else call('ZREM', HOLDS, ID) end
end

-- End an open job: remove bodies now, results after the job's own ttl, or after `ttl` ms.
local function finish(state, ttl)
  unhold()
  if number('ttl') > 0 then ttl = number('ttl') end
  call('HSET', RECORD, 'state', state, 'ended', text(NOW), 'due', text(NOW + ttl))
  call('ZREM', OPEN, ID)
  call('ZADD', DUE, NOW + ttl, ID)
  leave_bodies()
  -- Only the file names what did not run. It stays as long as the results.
  if not OWN and number('results') < number('items') then call('ZADD', HOLDS, text(NOW + ttl), ID) end
  count('bytes', get('tenant'), -number('bodies'))
  call('HSET', RECORD, 'bytes', text(number('bytes') - number('bodies')), 'bodies', 0)
end

local function index_member(tenant) return tenant .. '\0' .. string.format('%016.0f', number('created')) .. '\0' .. ID end

-- Return the part of a job that Redis lost, evicted or deleted by hand; nil for none. Without it an open job can't go
-- on: nobody knows what is left to do, or what is done.
local function lost_part()
  local state, results, blocks = get('state'), number('results'), number('blocks')
  if call('HLEN', RESULTS) ~= results then return 'results' end
  if state ~= 'uploading' and not is_open(state) then return nil end
  if call('HLEN', ITEMS) ~= blocks then return 'bodies' end
  if call('LLEN', SIZES) ~= blocks then return 'sizes of blocks' end
  if results > 0 and call('EXISTS', DONE) == 0 then return 'list of finished items' end
end

-- End an open job that lacks a part; return whether it does. Stored as cancelled, because earlier versions know no other
-- state that fits.
local function end_if_torn(ttl)
  local part = is_open(get('state')) and lost_part()
  if not part then return false end
  finish('cancelled', ttl)
  call('HSET', RECORD, 'lost', part)
  return true
end

-- Remove what is left of a job whose record is gone. The counts against the limits are wrong then, until `recount`.
local function drop_rest()
  call('ZREM', OPEN, ID)
  call('ZREM', DUE, ID)
  call('UNLINK', RECORD, RESULTS)
  leave_bodies()
  if OWN then call('UNLINK', HOLDS) end
end

local function forget()
  local tenant, key = get('tenant'), get('key')
  unhold()
  count('jobs', tenant, -1)
  count('items', tenant, -number('items'))
  count('bytes', tenant, -number('bytes'))
  if key ~= '' and call('HGET', NAMES, tenant .. '\0' .. key) == ID then call('HDEL', NAMES, tenant .. '\0' .. key) end
  call('ZREM', INDEX, index_member(tenant))
  call('ZREM', FILES, index_member(tenant))
  drop_rest()
end

-- Forget a job, an upload or a file. A file that a job needs is only hidden, and looked at again after a minute.
local function remove()
  if get('kept') == '' then return forget() end
  call('ZREMRANGEBYSCORE', HOLDS, '-inf', NOW)
  if call('ZCARD', HOLDS) == 0 then return forget() end
  call('HSET', RECORD, 'kept', 'hidden')
  call('ZREM', FILES, index_member(get('tenant')))
  call('ZADD', DUE, NOW + 60000, ID)
end
