-- Find the request that a client key belongs to, and its result, without submitting anything.
--
-- Keys: names.lua. ARGV: common.lua.
-- A: tenant, client key, request id, digest of the request
-- Reply: as `submit` for a key that is known; nil if it is unknown, or if it is this request's own and has no result

return Q.find_key(A[1], A[2], A[3], A[4])
