-- Store the result of a client key's request, or free the key.
--
-- Keys: names.lua. ARGV: common.lua.
-- A: router, tenant, client key, request id, result ("" to forget the key)
-- Reply: 1, or 0 if the key belongs to another request. A stored result stays until its time is over.

Q.open_pool()
local field, result = A[2] .. '\0' .. A[3], A[5]
if not Q.owns_key(field, A[4]) then return 0 end

local most = tonumber(ARGV[16])
if result == '' or tonumber(ARGV[15]) == 0 or #result > most then
  -- Keep a stored result: a call that returned to a finished request may fail, and that says nothing about its result.
  if call('HEXISTS', K[RESULTS], field) == 0 then Q.drop_key(field) end
else
  Q.drop_result(field)
  call('HSET', K[RESULTS], field, result)
  call('ZADD', K[KEY_DUE], Q.now + tonumber(ARGV[15]), field)
  Q.set(P_RESULTS, P[P_RESULTS] + #result)
  Q.make_room()
end
Q.close_pool()
return 1
