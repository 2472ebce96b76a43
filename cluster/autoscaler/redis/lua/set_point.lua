-- Store an operating point.
--
-- Keys: common.lua. ARGV: 2 the point, 3 1 to leave one that is there
-- Reply: its version; 0 when there was one

if ARGV[3] == '1' and get('point') ~= '' then return 0 end
call('HSET', CONTROL, 'point', ARGV[2])
return call('HINCRBY', CONTROL, 'point_version', 1)
