-- Count a failed execution of an item.
--
-- Keys: common.lua. ARGV: 3 token, 4 item
-- Reply: how many failed; -1 not held

if get('token') ~= ARGV[3] then return -1 end
return call('HINCRBY', FAILURES, ARGV[4], 1)
