-- Begin an upload.
--
-- Keys: common.lua. ARGV: 3 tenant, 4 header, 5 upload ms, 6 jobs per tenant, 7 jobs
-- Reply: {} begun; {what, limit} if a limit would be exceeded

local tenant = ARGV[3]
if counted('jobs', tenant) >= tonumber(ARGV[6]) then return {'tenant_jobs', ARGV[6]} end
if counted('jobs', '') >= tonumber(ARGV[7]) then return {'max_jobs', ARGV[7]} end
local due = NOW + tonumber(ARGV[5])
call('HSET', RECORD, 'tenant', tenant, 'header', ARGV[4], 'state', 'uploading', 'created', text(NOW), 'due', text(due))
call('ZADD', DUE, due, ID)
count('jobs', tenant, 1)
return {}
