-- Count a failed execution of an item, once.
--
-- Keys: common.lua. ARGV: 3 token, 4 item, 5 name of the execution
-- Reply: how many failed; -1 not held

if get('token') ~= ARGV[3] then return -1 end
local last = ARGV[4] .. '\0'
if call('HGET', FAILURES, last) == ARGV[5] then return tonumber(call('HGET', FAILURES, ARGV[4])) end
call('HSET', FAILURES, last, ARGV[5])
return call('HINCRBY', FAILURES, ARGV[4], 1)
