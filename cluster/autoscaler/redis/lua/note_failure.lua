-- Count a start that failed.
--
-- Keys: common.lua. ARGV: 2 why
-- Reply: how many there were

call('HSET', CONTROL, 'failure', ARGV[2])
return call('HINCRBY', CONTROL, 'failed_starts', 1)
