-- Store an operating point.
--
-- Keys: common.lua. ARGV: 2 point, 3 1 to keep a point that is there
-- Reply: version of the new point; 0 if one was kept

if ARGV[3] == '1' and get('point') ~= '' then return 0 end
call('HSET', CONTROL, 'point', ARGV[2])
return call('HINCRBY', CONTROL, 'point_version', 1)
