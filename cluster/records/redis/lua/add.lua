-- Store records, and forget what is beyond the bounds.
--
-- ARGV: 1 time in ms, or "" for the server's; 2 most; 3 ms for which missed ones are kept; 4 most bytes; then for each
-- record: tenant, id, 1 if it missed its SLO else 0, record
-- Reply: number of requests of which records are kept
local CALLS = 64 * 1024 -- most bytes of one request's records: a client may come back any number of times
local SOME = 256 -- most requests that one call forgets for each reason: a bound that was lowered leaves very many

local now = tonumber(ARGV[1])
if not now then
  local t = call('TIME')
  now = t[1] * 1000 + math.floor(t[2] / 1000)
end
local most, missed_ms, max_bytes = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local bytes = tonumber(call('GET', BYTES)) or 0
-- Where the clock was set back, new requests still come behind those that are here: they would be the first to go.
local newest = tonumber(call('ZRANGE', RECENT, -1, -1, 'WITHSCORES')[2]) or 0
local ahead = newest > now

for i = 5, #ARGV, 4 do
  local tenant, id, missed, record = ARGV[i], ARGV[i + 1], ARGV[i + 2] == '1', ARGV[i + 3]
  local member = tenant .. '\0' .. id
  local old = call('HGET', RECORDS, id) or ''
  if #old + #record <= CALLS then
    call('HSET', RECORDS, id, old .. record)
    bytes = bytes + #record
  end
  local since = tonumber(call('ZSCORE', RECENT, member) or call('ZSCORE', MISSED, member))
  if not since and ahead then newest = newest + 1 end
  since = since or (ahead and newest or now)
  if old == '' then
    call('ZADD', RECENT, text(since), member)
    call('ZADD', TENANTS, 0, in_order(tenant, since, id))
  end
  if missed then call('ZADD', MISSED, text(since), member) end
end

-- Forget a request that no list has any more.
local function forget(member, ms)
  local tenant, id = split(member)
  bytes = bytes - #(call('HGET', RECORDS, id) or '')
  call('HDEL', RECORDS, id)
  call('ZREM', TENANTS, in_order(tenant, ms, id))
end

-- Take the oldest of a list off it, at most so many and none that is younger.
local function drop(list, other, count, before)
  local oldest = call('ZRANGE', list, 0, count - 1, 'WITHSCORES')
  for i = 1, #oldest, 2 do
    local member, ms = oldest[i], tonumber(oldest[i + 1])
    if before and ms > before then return end
    call('ZREM', list, member)
    if not call('ZSCORE', other, member) then forget(member, ms) end
  end
end

local excess = call('ZCARD', RECENT) - most
-- At least as many as came.
if excess > 0 then drop(RECENT, MISSED, math.min(excess, math.max(SOME, #ARGV))) end
drop(MISSED, RECENT, SOME, now - missed_ms)
for _ = 1, SOME do
  if bytes <= max_bytes then break end
  local first = call('ZRANGE', RECENT, 0, 0, 'WITHSCORES')
  local late = call('ZRANGE', MISSED, 0, 0, 'WITHSCORES')
  if #first == 0 or (#late > 0 and tonumber(late[2]) < tonumber(first[2])) then first = late end
  if #first == 0 then break end
  call('ZREM', RECENT, first[1])
  call('ZREM', MISSED, first[1])
  forget(first[1], tonumber(first[2]))
end

local kept = call('HLEN', RECORDS)
if bytes < 0 or kept > call('ZCARD', TENANTS) or call('ZCARD', RECENT) + call('ZCARD', MISSED) < kept then
  -- Redis lost a part, and nothing says any more which records are due.
  call('UNLINK', RECORDS, RECENT, MISSED, TENANTS, BYTES)
  return 0
end
if kept > 0 then call('SET', BYTES, text(bytes)) else call('UNLINK', BYTES) end
return kept
