-- Take an open job.
--
-- Keys: common.lua. ARGV: 3 router, 4 token, 5 lease ms, 6 1 to take over from a feeder whose lease ended, 7 jobs of a
-- tenant that may be fed at once, 8 ttl ms
-- Reply: 1 taken; 0 not; 2 not, because a part of it is lost

local from = tonumber(call('ZSCORE', OPEN, ID))
if not from or not is_due(from, tonumber(ARGV[5])) then return 0 end
if not is_open(get('state')) then
  -- Its record is gone. It must not stand in the way of others.
  call('ZREM', OPEN, ID)
  return 0
end
if end_if_torn(tonumber(ARGV[8])) then return 2 end
local tenant = get('tenant')
if get('holder') ~= '' then
  if ARGV[6] ~= '1' then return 0 end
elseif counted('feeding', tenant) >= tonumber(ARGV[7]) then
  -- Move the job behind those of other tenants, so that a tenant with many jobs does not hide these from look.lua.
  call('ZADD', OPEN, NOW + 1000, ID)
  return 0
else
  count('feeding', tenant, 1)
end
if get('started') == '' then call('HSET', RECORD, 'started', text(NOW)) end
call('HSET', RECORD, 'state', 'running', 'holder', ARGV[3], 'token', ARGV[4])
call('ZADD', OPEN, NOW + tonumber(ARGV[5]), ID)
return 1
