-- Add a block to an upload.
--
-- Keys: common.lua. ARGV: 3 items that are there, 4 items in the block, 5 block, 6 upload ms, 7 items per tenant,
-- 8 items, 9 bytes per tenant, 10 bytes
-- Reply: {} added; {what, limit} if a limit would be exceeded; false: no such upload

if get('state') ~= 'uploading' or get('kept') ~= '' or number('items') ~= tonumber(ARGV[3]) then return false end
local tenant, items, bytes = get('tenant'), tonumber(ARGV[4]), #ARGV[5]
if counted('items', tenant) + items > tonumber(ARGV[7]) then return {'tenant_items', ARGV[7]} end
if counted('items', '') + items > tonumber(ARGV[8]) then return {'max_items', ARGV[8]} end
if counted('bytes', tenant) + bytes > tonumber(ARGV[9]) then return {'tenant_bytes', ARGV[9]} end
if counted('bytes', '') + bytes > tonumber(ARGV[10]) then return {'max_bytes', ARGV[10]} end
call('HSET', ITEMS, call('HINCRBY', RECORD, 'blocks', 1) - 1, ARGV[5])
call('RPUSH', SIZES, items)
call('HINCRBY', RECORD, 'items', items)
call('HINCRBY', RECORD, 'bodies', bytes)
call('HINCRBY', RECORD, 'bytes', bytes)
count('items', tenant, items)
count('bytes', tenant, bytes)
call('ZADD', DUE, NOW + tonumber(ARGV[6]), ID)
return {}
