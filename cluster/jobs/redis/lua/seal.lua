-- End an upload and open the job.
--
-- Keys: common.lua. ARGV: 3 client key or "", 4 digest, 5 run within ms
-- Reply: id of the job that has the key already; ID itself if it was sealed; false: no such upload, or a part of it is
-- lost

if get('state') ~= 'uploading' or get('kept') ~= '' or lost_part() then return false end
local tenant, key = get('tenant'), ARGV[3]
if key ~= '' then
  local other = call('HGET', NAMES, tenant .. '\0' .. key)
  if other then return other end
  call('HSET', NAMES, tenant .. '\0' .. key, ID)
end
local due = NOW + tonumber(ARGV[5])
call('HSET', RECORD, 'key', key, 'digest', ARGV[4], 'state', 'queued', 'created', text(NOW), 'due', text(due))
call('ZADD', OPEN, NOW, ID)
call('ZADD', DUE, due, ID)
call('ZADD', INDEX, 0, tenant .. '\0' .. string.format('%016.0f', NOW) .. '\0' .. ID)
return ID
