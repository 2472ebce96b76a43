-- Note that a call waits for the result of a key's request, or tell whether one does.
--
-- Keys: names.lua. ARGV: common.lua.
-- A: tenant, client key, request id, 1 to note and 0 to ask
-- Reply: 1 if a call has waited within the last lease, else 0

Q.pass_when_full()
Q.open_pool()
local field = A[1] .. '\0' .. A[2]
if not Q.owns_key(field, A[3]) then return 0 end
local record = cmsgpack.unpack(call('HGET', K[CLIENT_KEYS], field))
if A[4] == 0 then return record[4] and Q.now - record[4] <= Q.lease and 1 or 0 end
record[3], record[4] = record[3] or record[2], Q.now
call('HSET', K[CLIENT_KEYS], field, cmsgpack.pack(record))
return 1
