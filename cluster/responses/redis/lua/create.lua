-- Store a new response.
--
-- ARGV: 4 token, 5 request, 6 end of the lease in ms from now, or "" without a lease, 7 ttl ms, 8 responses per tenant,
-- 9 bytes per tenant, 10 most responses that go at once for bytes
-- Reply: 1 stored; 0 there is one of this id; -1 running ones take all; a list of ids that must be deleted first

if call('EXISTS', RESPONSE) == 1 then return 0 end
local bytes = #ARGV[5]
local most_bytes = tonumber(ARGV[9])
local old = bytes <= most_bytes and surplus(tonumber(ARGV[8]), most_bytes, bytes, 1, tonumber(ARGV[10]))
if not old then return -1 end
if #old > 0 then return old end
call('HSET', RESPONSE, 'tenant', TENANT, 'created', text(NOW), 'request', ARGV[5], 'bytes', text(bytes), 'token', ARGV[4],
     'read', text(NOW))
if ARGV[6] ~= '' then call('ZADD', OPEN, text(NOW + tonumber(ARGV[6])), MEMBER) end
call('ZADD', DUE, text(NOW + tonumber(ARGV[7])), MEMBER)
count('bytes', bytes)
count('running', 1)
return 1
