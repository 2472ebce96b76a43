-- Store a record if nobody stored another one meanwhile.
--
-- ARGV: 1 version that is expected, 0 for none; 2 new version; 3 record
-- Reply: 1 stored; 0 the version is another one

if (tonumber(call('HGET', ROLLOUT, 'version')) or 0) ~= tonumber(ARGV[1]) then return 0 end
call('HSET', ROLLOUT, 'version', ARGV[2], 'record', ARGV[3])
return 1
