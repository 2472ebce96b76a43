-- Count a start that failed.
--
-- Keys: common.lua. ARGV: 2 reason
-- Reply: how many starts failed so far

call('HSET', CONTROL, 'failure', ARGV[2])
return call('HINCRBY', CONTROL, 'failed_starts', 1)
