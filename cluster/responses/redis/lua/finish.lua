-- Store the result of a response, which ends it.
--
-- ARGV: 4 token, 5 result, 6 ttl ms, 7 responses per tenant, 8 bytes per tenant,
-- 9 most responses that go at once for bytes, 10 id of the cluster's request, or "" where it is noted or unknown
-- Reply: 0 not held; else a list of ids that must be deleted, because the tenant has more than it may

pass_when_full()
if not is_held(ARGV[4]) then return 0 end
local bytes = #ARGV[5]
local due = NOW + tonumber(ARGV[6])
count('bytes', bytes - (tonumber(get('bytes')) or 0))
count('running', -1)
call('HSET', RESPONSE, 'result', ARGV[5], 'bytes', text(bytes), 'request', '', 'token', '')
if ARGV[10] ~= '' then call('HSET', RESPONSE, 'run', ARGV[10]) end
call('UNLINK', JOURNAL)
call('ZREM', OPEN, MEMBER)
call('ZADD', ENDED, text(NOW), ID)
call('ZADD', DUE, text(due), MEMBER)
local found = {}
for _, id in ipairs(surplus(tonumber(ARGV[7]), tonumber(ARGV[8]), 0, 0, tonumber(ARGV[9])) or {}) do
  if id ~= ID then found[#found + 1] = id end
end
return found
