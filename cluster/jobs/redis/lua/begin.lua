-- Open a job on the items of a file, or note one that failed before it began.
--
-- Keys: common.lua. ARGV: 3 tenant, 4 header, 5 note, 6 client key or "", 7 digest, 8 run within ms, 9 ttl ms,
-- 10 items, 11 blocks, 12 1 if it failed, 13 jobs per tenant, 14 jobs, 15 items per tenant, 16 items
-- Reply: {id} of the job that has the key already, or of this one; {what, limit} if a limit would be exceeded; false:
-- the file is gone, or lacks a part

local tenant, key, items, blocks = ARGV[3], ARGV[6], tonumber(ARGV[10]), tonumber(ARGV[11])
if call('HLEN', ITEMS) ~= blocks or call('LLEN', SIZES) ~= blocks then return false end
if key ~= '' then
  local other = call('HGET', NAMES, tenant .. '\0' .. key)
  if other then return {other} end
end
if counted('jobs', tenant) >= tonumber(ARGV[13]) then return {'tenant_jobs', ARGV[13]} end
if counted('jobs', '') >= tonumber(ARGV[14]) then return {'max_jobs', ARGV[14]} end
if counted('items', tenant) + items > tonumber(ARGV[15]) then return {'tenant_items', ARGV[15]} end
if counted('items', '') + items > tonumber(ARGV[16]) then return {'max_items', ARGV[16]} end
local failed = ARGV[12] == '1'
local due = NOW + tonumber(failed and ARGV[9] or ARGV[8])
call('HSET', RECORD, 'tenant', tenant, 'header', ARGV[4], 'note', ARGV[5], 'key', key, 'digest', ARGV[7])
call('HSET', RECORD, 'created', text(NOW), 'due', text(due), 'items', items, 'blocks', blocks, 'ttl', ARGV[9])
if key ~= '' then call('HSET', NAMES, tenant .. '\0' .. key, ID) end
if failed then
  call('HSET', RECORD, 'state', 'failed', 'ended', text(NOW))
else
  call('HSET', RECORD, 'state', 'queued')
  call('ZADD', OPEN, NOW, ID)
  call('ZADD', HOLDS, due, ID)
end
call('ZADD', DUE, due, ID)
call('ZADD', INDEX, 0, index_member(tenant))
count('jobs', tenant, 1)
count('items', tenant, items)
return {ID}
