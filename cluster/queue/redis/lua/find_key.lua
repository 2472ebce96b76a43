-- Whose a client key is, and its result, without submitting anything.
--
-- Keys: names.lua. ARGV: common.lua.
-- A: tenant, client key, request id, digest of the request
-- Reply: as that of `submit` for a key that is known; nil where it is not, or is this request's own and has no result

return Q.find_key(A[1], A[2], A[3], A[4])
